"""Where a command writes to what is no file, that stays what it is."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from dtr_alloc.output_file import put_in_place


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    beside, pipe, file = tmp_path / "beside", tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    beside.write_text("whole")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    put_in_place(beside, pipe)
    reader.join()
    assert read == ["whole"]
    assert pipe.is_fifo()
    put_in_place(beside, file)
    assert file.read_text() == "whole"
