"""The bridge is compiled once, says so, and can be compiled before it is needed. Only what the user
alone can write is loaded, and only whole.

Most tests have a stand-in for the compiler, which writes a library that is no bridge in a moment.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import command

from dtr_alloc.torch import bridge
from dtr_alloc.torch.bridge_cache import BridgeError, Cache

OTHER_USER = 54321


def build(cache: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return command("build", *arguments, status=None, cache=str(cache), **environ)


def visible(folder: Path) -> list[str]:
    """All but the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".dtr_alloc-lock")


@pytest.mark.parametrize(
    ("arguments", "environ", "status", "reason"),
    [
        (("--device", "tpu"), {}, 2, "'tpu': the installed torch is built for cpu"),
        ((), {"CXX": "no-such-compiler"}, 1, "no C++ compiler: looked for 'no-such-compiler'"),
    ],
    ids=["a device that torch is not built for", "no compiler"],
)
def test_what_cannot_be_built_is_named(tmp_path, arguments, environ, status, reason):
    refused = build(tmp_path, *arguments, **environ)
    assert refused.returncode == status
    assert reason in refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """A library with the entry point that is asked for first."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "library.c").write_text("int dtr_bridge_connect(void) { return 0; }")
    (folder / "other.c").write_text("int something_else(void) { return 0; }")
    for name in ("library", "other"):
        source, made = folder / f"{name}.c", folder / f"{name}.so"
        subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", made], check=True)
    return folder / "library.so"


@pytest.fixture
def cxx(tmp_path, library, monkeypatch):
    """Makes a shell script the compiler; $out is where the library goes, $library and $other are
    some. Without a script it copies the first."""

    def use(script: str = "cp $library $out") -> Path:
        path = tmp_path / "cxx"
        path.write_text(
            "#!/bin/sh\n"
            'while [ "$1" != -o ]; do shift; done; out=$2\n'
            f"library={library}; other={library.parent / 'other.so'}\n"
            f"{script}\n"
        )
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    # dlopen gives a library of the same address again, also to later tests of this process.
    monkeypatch.setattr(bridge, "library_name", lambda device: f"bridge-{device}-stand-in.so")
    use()
    return use


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DTR_ALLOC_CACHE", str(folder))
    return folder


def test_the_first_call_compiles_and_says_so_and_the_second_finds_it(cache, cxx):
    first = build(cache, "--device", "cpu")
    assert first.returncode == 0, first.stderr
    assert Path(first.stdout.strip()).parent == cache
    assert visible(cache) == [Path(first.stdout.strip()).name]
    assert "compiling the bridge to PyTorch for cpu" in first.stderr
    second = build(cache, "--device", "cpu")
    assert second.stdout == first.stdout
    assert "compiling" not in second.stderr


class TestTheFolder:
    def test_is_made_for_the_user_alone(self, cache, cxx):
        old = os.umask(0)
        try:
            path = bridge.build("cpu")
        finally:
            os.umask(old)
        assert path.parent == cache
        assert cache.stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
    @pytest.mark.parametrize("has_bridge", [False, True])
    def test_that_others_can_write_to_is_refused(self, cache, cxx, mode, has_bridge):
        bridge.build("cpu") if has_bridge else cache.mkdir()
        cache.chmod(mode)
        with pytest.raises(BridgeError, match=f"{cache} .*by others .mode {mode:04o}.*; allowed"):
            bridge.build("cpu")
        assert len(visible(cache)) == has_bridge
        assert f"by others (mode {mode:04o})" in bridge.status()["reason"]
        assert not bridge.status()["cached"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder away, which only root can")
    def test_of_another_user_is_refused(self, cache, cxx):
        bridge.build("cpu")
        os.chown(cache, OTHER_USER, -1)
        with pytest.raises(BridgeError, match=f"belongs to user {OTHER_USER}; allowed"):
            bridge.build("cpu")

    def test_that_a_link_leads_to_is_looked_at_itself(self, cache, cxx, tmp_path):
        open_to_all = tmp_path / "open"
        open_to_all.mkdir()
        open_to_all.chmod(0o777)
        cache.symlink_to(open_to_all)
        with pytest.raises(BridgeError, match="by others"):
            bridge.build("cpu")
        open_to_all.chmod(0o700)
        assert bridge.build("cpu").exists()

    def test_that_is_exchanged_after_it_was_looked_at_is_not_read(self, cache, cxx, tmp_path):
        """Others may write to the folder above."""
        name = bridge.build("cpu").name
        with Cache(cache, create=False) as found:
            assert found.fault(name) is None
            cache.rename(tmp_path / "moved")
            cache.mkdir()
            (cache / name).write_bytes(b"another")
            assert Path(found.address(name)).read_bytes() != b"another"
            assert found.fault(name) is None

    def test_that_is_a_file_is_named(self, cache, cxx):
        cache.write_text("")
        with pytest.raises(BridgeError, match=f"{cache} cannot keep"):
            bridge.build("cpu")

    def test_by_default_has_a_private_substitute_and_that_is_said(
        self, tmp_path, monkeypatch, cxx, capsys
    ):
        monkeypatch.delenv("DTR_ALLOC_CACHE", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
        (tmp_path / "home/dtr_alloc").mkdir(parents=True)
        (tmp_path / "home/dtr_alloc").chmod(0o777)
        path = bridge.build("cpu")
        assert path.parent == tmp_path / f"temporary/dtr_alloc-{os.geteuid()}"
        said = capsys.readouterr().err
        assert f"{tmp_path / 'home/dtr_alloc'} cannot keep the bridge" in said
        assert f"kept in {path.parent}" in said
        assert bridge.build("cpu") == path
        monkeypatch.setattr(bridge, "kinds", lambda: ["cpu"])
        assert bridge.status()["path"] == str(path)
        assert capsys.readouterr().err == ""


class TestAFile:
    @pytest.mark.parametrize(
        ("damage", "reason"),
        [
            (lambda path: os.truncate(path, 4096), "is damaged"),
            (lambda path: os.truncate(path, 0), "is damaged"),
            (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is damaged"),
            (lambda path: flip(path, 100), "is damaged"),
            (lambda path: flip(path, -1), "is damaged"),
            (lambda path: path.chmod(0o777), "can be written to by others"),
            (lambda path: (path.unlink(), path.symlink_to("/bin/sh")), "cannot be read"),
            (lambda path: (path.unlink(), os.mkfifo(path)), "is no file"),
        ],
        ids=["cut", "empty", "short", "bit", "checksum", "mode", "link", "pipe"],
    )
    def test_that_is_not_as_it_was_written_is_built_again(self, cache, cxx, capsys, damage, reason):
        path = bridge.build("cpu")
        whole = path.read_bytes()
        path.unlink()  # this process has loaded it, and would end with an error
        path.write_bytes(whole)
        damage(path)
        assert not bridge.status()["cached"]
        capsys.readouterr()
        assert bridge.build("cpu") == path
        assert f"{path} {reason}" in capsys.readouterr().err
        assert path.read_bytes() == whole
        assert visible(cache) == [path.name]

    @pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away, which only root can")
    def test_of_another_user_is_built_again(self, cache, cxx):
        path = bridge.build("cpu")
        os.chown(path, OTHER_USER, -1)
        bridge.build("cpu")
        assert path.stat().st_uid == os.geteuid()

    def test_that_is_whole_is_taken_from_a_folder_that_cannot_be_written_to(self, cache, cxx):
        path = bridge.build("cpu")
        cache.chmod(0o500)
        assert bridge.build("cpu") == path


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def sealed(content: bytes) -> bytes:
    return content + b"\ndtr_alloc sha256 " + hashlib.sha256(content).digest()


class TestThePackage:
    """With a folder of bridges, as a wheel brings it."""

    @pytest.fixture
    def packaged(self, cache, cxx, tmp_path, monkeypatch) -> Path:
        """A bridge in it, which others may write to, as they may to a shared environment."""
        made = bridge.build("cpu")
        folder = tmp_path / "bridges"
        shutil.copytree(cache, folder)
        folder.chmod(0o775)
        (folder / made.name).chmod(0o775)
        shutil.rmtree(cache)
        monkeypatch.setattr(bridge, "PACKAGED", folder)
        return folder / made.name

    def test_needs_neither_a_compiler_nor_a_cache(self, cache, packaged, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        assert bridge.build("cpu") == packaged
        monkeypatch.setattr(bridge, "kinds", lambda: ["cpu"])
        assert (bridge.status()["cached"], bridge.status()["path"]) == (True, str(packaged))
        assert not cache.exists()

    @pytest.mark.parametrize(
        ("damage", "said"),
        [
            (lambda path: flip(path, 100), "is damaged: its checksum does not fit"),
            (
                lambda path: path.write_bytes(sealed(b"as if of another libc")),
                "is not used: the bridge to PyTorch does not load: ",
            ),
            (lambda path: path.rename(path.with_name("of-another-torch.so")), ""),
        ],
        ids=["damaged", "unloadable", "other"],
    )
    def test_has_the_bridge_compiled_where_its_own_does_not_serve(
        self, cache, packaged, tmp_path, monkeypatch, capsys, damage, said
    ):
        name = f"{tmp_path.name}.so"  # dlopen has loaded none of this name
        monkeypatch.setattr(bridge, "library_name", lambda device: name)
        damage(packaged := packaged.rename(packaged.with_name(name)))
        monkeypatch.setattr(bridge, "kinds", lambda: ["cpu"])
        reason = bridge.status()["reason"]
        capsys.readouterr()
        assert bridge.build("cpu") == cache / name
        *before, last = capsys.readouterr().err.splitlines()
        assert "compiling the bridge to PyTorch for cpu" in last
        assert "".join(before).startswith(said and f"dtr_alloc: {packaged} {said}")
        assert reason == "; ".join([*before, "compiled on first use"]).removeprefix("dtr_alloc: ")


class TestACompiler:
    @pytest.mark.parametrize(
        ("script", "reason"),
        [
            ("exit 0", "it wrote nothing"),
            (": > $out", "0 bytes, is no shared library"),
            ("echo garbage > $out", "8 bytes, is no shared library"),
            ("head -c 100 $library > $out", "100 bytes, is no shared library"),
            ("head -c 9000 $library > $out", "9000 bytes, is no shared library"),
            ("cp $other $out", "undefined symbol: dtr_bridge_connect"),
            ("mkdir $out", "is no file"),
            ("echo what it said >&2; cp $library $out; exit 3", "status 3 .*\nwhat it said"),
            ("kill -KILL $$", "signal 9"),
        ],
        ids=["nothing", "empty", "garbage", "head", "half", "other", "folder", "status", "signal"],
    )
    def test_that_fails_in_any_way_is_named_and_leaves_nothing(self, cache, cxx, script, reason):
        path = cxx(script)
        with pytest.raises(BridgeError, match=f"(?s)was not built by {path}: .*{reason}"):
            bridge.build("cpu")
        assert not visible(cache)
        cxx()
        assert bridge.build("cpu").exists()

    def test_that_is_no_program_is_named(self, cache, cxx):
        path = cxx()
        path.write_text("#!/no/such/interpreter")
        with pytest.raises(BridgeError, match=f"was not built by {path}: it cannot be run"):
            bridge.build("cpu")

    def test_has_its_temporary_files_beside_the_library(self, cache, cxx):
        cxx('touch $TMPDIR/beside; [ "$(ls)" = beside ] && cp $library $out')
        bridge.build("cpu")


BUILDER = """
import sys, time
from pathlib import Path
from dtr_alloc.torch.bridge_cache import Cache

def compile_in(folder):
    Path(f"/proc/self/fd/{folder}/unfinished").touch()
    with open(sys.argv[3], "a") as log:
        log.write("compiled\\n")
    while not Path(sys.argv[4]).exists():
        time.sleep(0.01)
    Path(f"/proc/self/fd/{folder}/bridge.so").write_bytes(Path(sys.argv[2]).read_bytes())

with Cache(Path(sys.argv[1]), create=True) as cache:
    cache.build("bridge.so", compile_in, lambda path: None)
    assert cache.fault("bridge.so") is None
"""


@pytest.fixture
def builders(tmp_path, library):
    """Starts a process that builds, and goes on compiling until `go` is there."""
    started = []

    def start() -> subprocess.Popen[str]:
        paths = [tmp_path / "cache", library, tmp_path / "log", tmp_path / "go"]
        line = [sys.executable, "-c", BUILDER, *map(str, paths)]
        started.append(subprocess.Popen(line, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def test_processes_that_start_together_compile_once_and_wait_for_the_one_that_does(
    tmp_path, builders
):
    first = builders()
    wait_for(tmp_path / "log")
    others = [builders() for _ in range(3)]
    for process in others:
        assert "waiting for another process" in process.stderr.readline()
    (tmp_path / "go").touch()
    assert [process.wait() for process in [first, *others]] == [0] * 4
    assert (tmp_path / "log").read_text() == "compiled\n"
    assert visible(tmp_path / "cache") == ["bridge.so"]


def test_what_a_killed_build_left_is_removed_by_the_next(tmp_path, builders):
    killed = builders()
    wait_for(tmp_path / "log")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert len(visible(tmp_path / "cache")) == 1
    (tmp_path / "go").touch()
    assert builders().wait() == 0
    assert visible(tmp_path / "cache") == ["bridge.so"]
