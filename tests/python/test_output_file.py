"""The files that a job leaves: what they replace and do not follow, and what is left of them after
an end in the middle. Needs nothing but the package."""

import os
import pty
import socket
import stat
import subprocess
import sys
from array import array
from pathlib import Path

import pytest
from commands import python

from dtr_alloc import oplog, output_file, report
from dtr_alloc.output_file import FileTaken, OutputFile, WrongKind, lock_file
from dtr_alloc.traces import trace_file

SUFFIXES = ("", ".gz", ".bz2", ".xz")
CALL = (oplog.Call("f", (), ("a",), 1), oplog.Memory("a", 8), oplog.Alias("a", -1))


def write_text(path):
    report.write_text(path, "text")


def write_log(path):
    with lock_file(path, "op log", "DTR_ALLOC_LOG"), oplog.Writer(path) as writer:
        writer.write(*CALL)


def write_trace(path):
    with lock_file(path, "trace", "DTR_ALLOC_TRACE"), trace_file.TraceWriter(path, {}) as writer:
        writer.write([array(column.typecode) for column in trace_file.COLUMNS])


@pytest.fixture(params=[write_text, write_log, write_trace])
def write(request):
    return request.param


class TestAFile:
    @pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
    def test_a_link_is_replaced_and_not_followed(self, write, tmp_path, link):
        target, path = tmp_path / "target", tmp_path / "path"
        target.write_text("another's")
        link(path, target)
        write(path)
        assert target.read_text() == "another's"
        assert not path.is_symlink()
        assert path.read_bytes() not in (b"another's", b"")

    def test_a_link_to_nothing_makes_no_file_there(self, write, tmp_path):
        (tmp_path / "path").symlink_to(tmp_path / "target")
        write(tmp_path / "path")
        assert os.listdir(tmp_path) == ["path"]

    def test_it_has_the_rights_of_any_new_file(self, write, tmp_path):
        (tmp_path / "new").touch()
        write(tmp_path / "path")
        assert (tmp_path / "path").stat().st_mode == (tmp_path / "new").stat().st_mode

    def test_a_folder_is_none(self, write, tmp_path):
        with pytest.raises(IsADirectoryError):
            write(tmp_path)
        assert os.listdir(tmp_path) == []

    def test_what_was_not_put_in_place_is_gone(self, tmp_path):
        with OutputFile(tmp_path / "path") as file:
            file.append(b"something")
        assert os.listdir(tmp_path) == []

    def test_one_that_grows_is_there_from_the_beginning(self, tmp_path):
        with OutputFile(tmp_path / "path", grows=True) as file:
            file.append(b"one")
            assert (tmp_path / "path").read_bytes() == b"one"


class TestWhatIsNoFile:
    def test_a_pipe_that_nobody_reads_is_an_error(self, write, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(
            WrongKind, match=r"pipe: nobody reads this pipe; allowed: a file, a dev"
        ):
            write(tmp_path / "pipe")

    def test_a_pipe_that_somebody_reads_gets_it(self, write, tmp_path):
        write(tmp_path / "file")
        os.mkfifo(tmp_path / "pipe")
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        write(tmp_path / "pipe")
        with open(reader, "rb") as file:
            assert file.read() == (tmp_path / "file").read_bytes()

    def test_a_device_is_written_to_by_any_number(self, write):
        ours, theirs = pty.openpty()
        try:
            path = os.ttyname(theirs)
            with lock_file(output_file.Path(path), "", ""):
                write(output_file.Path(path))
            assert os.read(ours, 1000)
            assert stat.S_ISCHR(os.stat(path).st_mode)
        finally:
            os.close(ours)
            os.close(theirs)

    def test_a_socket_is_an_error(self, write, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # the names of sockets are short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("socket")
            with pytest.raises(WrongKind, match="it is neither of these"):
                write(output_file.Path("socket"))

    @pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
    @pytest.mark.parametrize("into", ["file", "pipe"])
    def test_standard_output_is_added_to(self, tmp_path, name, into):
        code = (
            "from dtr_alloc import report\n"
            "print('before', flush=True)\n"
            f"report.write_text({name!r}, 'text\\n')\n"
        )
        with (tmp_path / "file").open("w") as file:
            stdout = file if into == "file" else subprocess.PIPE
            done = subprocess.run([sys.executable, "-c", code], stdout=stdout, text=True)
        assert (done.stdout or (tmp_path / "file").read_text()) == "before\ntext\n"


class TestALock:
    @pytest.mark.parametrize("is_there", [False, True])
    def test_a_path_is_written_by_one_at_a_time(self, tmp_path, is_there):
        path = tmp_path / "path"
        if is_there:
            path.touch()

        def take():
            return lock_file(path, "op log", "DTR_ALLOC_LOG")

        with take():
            with pytest.raises(FileTaken, match=r"no op log; with \{pid\} or"):
                take()
            with OutputFile(path, grows=True), pytest.raises(FileTaken):
                take()
        take().close()

    def test_a_file_that_goes_before_it_is_locked_does_not_count(self, tmp_path, monkeypatch):
        path = tmp_path / "path"
        lock = output_file._lock

        def replaced_before(file):
            monkeypatch.setattr(output_file, "_lock", lock)
            report.write_text(path, "another's")
            return lock(file)

        monkeypatch.setattr(output_file, "_lock", replaced_before)
        with lock_file(path, "op log", "DTR_ALLOC_LOG") as mark:
            assert os.path.samestat(os.fstat(mark.fileno()), path.stat())


def interrupted_everywhere(function):
    """Runs it again and again, each time interrupted one line of Python later, the standard
    library's lines included, until it comes to its end."""
    line = 0
    while True:
        line += 1
        left = line

        def trace(frame, event, _):
            nonlocal left
            left -= event == "line"
            if left == 0:
                raise KeyboardInterrupt  # which ends the tracing
            return trace

        def run():
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                function()
            finally:
                sys.settrace(before)

        try:
            run()
        except KeyboardInterrupt:
            yield
        else:
            assert line > 10
            return


class TestAnEndInTheMiddle:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_a_log_that_is_interrupted_at_any_line_can_be_read(self, tmp_path, suffix):
        path = tmp_path / f"job.log{suffix}"
        writer = None

        def write():
            for number in range(2):
                name = f"x{number}"
                writer.write(oplog.Constant(name), oplog.Memory(name, number))
                writer.flush()

        def with_a_new_writer():
            nonlocal writer
            writer = oplog.Writer(path)
            writer.write(*CALL)
            writer.flush()
            return write

        whole = [
            *CALL,
            *(
                line
                for n in "01"
                for line in (oplog.Constant(f"x{n}"), oplog.Memory(f"x{n}", int(n)))
            ),
        ]
        with_a_new_writer()
        for _ in interrupted_everywhere(write):
            writer.close()
            found = list(oplog.read(path))
            assert found == whole[: len(found)]
            assert len(found) in (3, 5, 7)
            oplog.compile_log(path)
            with_a_new_writer()
        writer.close()
        assert list(oplog.read(path)) == whole

    @pytest.mark.parametrize("suffix", SUFFIXES)
    def test_a_full_disk_leaves_whole_groups_of_lines(self, tmp_path, suffix):
        # A limit on the size of files stands for the disk. In a process of its own.
        path = tmp_path / f"job.log{suffix}"
        code = f"""
import resource, signal
from dtr_alloc import oplog
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = oplog.Writer({str(path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    for number in range(1000):
        name = str(number)
        call = oplog.Call("f", (), (name,), number * number)
        writer.write(call, oplog.Memory(name, number**3), oplog.Alias(name, -1))
    writer.flush()
except OSError as error:
    print(error.strerror)
"""
        assert python("-c", code).stdout == "File too large\n"
        assert 500 < path.stat().st_size <= 1000
        found = oplog.compile_log(path)
        assert found.names == [str(number) for number in range(len(found.names))]

    def test_what_an_interrupted_append_left_is_written_over_or_cut_off(
        self, tmp_path, monkeypatch
    ):
        path = tmp_path / "path"
        pwrite = os.pwrite

        def interrupted(descriptor, data, at):
            monkeypatch.setattr(os, "pwrite", pwrite)
            pwrite(descriptor, data[:-1], at)
            raise KeyboardInterrupt

        with OutputFile(path, grows=True) as file:
            file.append(b"whole ")
            for then in (b"new", b""):
                monkeypatch.setattr(os, "pwrite", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    file.append(b"interrupted")
                file.append(then)
        assert path.read_bytes() == b"whole new"
