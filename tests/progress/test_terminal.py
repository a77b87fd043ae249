"""ProgressCB in a real terminal: a process in a pty, whose screen is read back."""

import codecs
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

pty = pytest.importorskip("pty")  # there is none on Windows

# One process for all: it makes its terminal wider and narrower by itself.
SCRIPT = """
import fcntl, struct, sys, termios, time
from toys import At, batches, toy_learner
from minilearn.progress import terminal as display
from minilearn.metrics.callback import MetricsCB
from minilearn.progress.callback import ProgressCB

def resize(width):
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))

def mae(preds, targs):
    return (preds - targs).abs().mean()

def begin(section, width):
    resize(width)
    print(f"section {section}")

def fit(*cbs, n=20):
    cbs = [MetricsCB(mae=mae), ProgressCB(plot=True), *cbs]
    toy_learner(cbs, dls=(batches(n), batches(4))).fit(3)
    print("after")

def shrink(learn):
    resize(30)
    print("smaller")

display.Terminal.redraw_every = 0
for width in (20, 40, 80, 200):
    begin(width, width)
    fit()
begin("resize", 100)
fit(At("after_batch", shrink, lambda learn: learn.epoch == 1 and learn.iter == 9))
begin("broken", 40)
true_width, display.terminal_width = display.terminal_width, lambda: 80
fit()
display.terminal_width = true_width
begin("interrupt", 80)
try:
    fit(At("after_batch", lambda learn: time.sleep(0.01), times=9999), n=10000)
except KeyboardInterrupt:
    print("interrupted")
"""


def read_until(fd, text, wanted, seconds=200):
    """Read on from `text` until `wanted` was written, to the end where it is None."""
    end, decoder = time.monotonic() + seconds, codecs.getincrementaldecoder("utf-8")()
    while wanted is None or wanted not in text or decoder.getstate()[0]:  # within a character
        assert time.monotonic() < end, f"waited for {wanted!r}, saw {text!r}"
        try:
            data = os.read(fd, 65536)
        except OSError:  # on Linux the end of the process
            data = b""
        if not data:
            assert wanted is None, f"the process ended before {wanted!r}: {text!r}"
            return text
        text += decoder.decode(data)
    return text


@pytest.fixture(scope="module")
def sections():
    """What the process wrote, by section."""
    folders = [*sys.path, str(Path(__file__).parents[1])]
    pid, fd = pty.fork()
    if pid == 0:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
        os.execve(sys.executable, [sys.executable, "-c", SCRIPT], env)
    try:
        text = read_until(fd, "", "section interrupt")
        text = read_until(fd, text, "/10000 loss")
        os.write(fd, b"\x03")
        text = read_until(fd, text, None)
    finally:
        os.close(fd)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    parts = re.split(r"section (\w+)\r\n", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def screen(text, width):
    """Return the lines on a screen of `width` columns, those that scrolled away included."""
    lines, column = [""], 0
    for char in text:
        if char == "\r":
            column = 0
        elif char == "\n" or column == width:  # a full line goes on in the next
            lines.append("")
            column = 0
        if char not in "\r\n":
            lines[-1] = lines[-1][:column].ljust(column) + char + lines[-1][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def pieces(text):
    """Return what was written between two carriage returns or line ends."""
    return re.split("[\r\n]", text)


COLUMNS = ["epoch", "train_loss", "valid_loss", "train_mae", "mae", "time"]


def check_screen(text, width):
    """A header and three rows remain, nothing scrolled, nothing is wider than the terminal.

    Above them stands which columns there is no room for.
    """
    *left_out, header, first, second, third, after, rest = screen(text, width)
    rows = [first, second, third]
    shown = header.split()
    left = " ".join(left_out).removeprefix("no room for ").replace(", ", " ").split()
    assert sorted(shown + left) == sorted(COLUMNS)
    assert (after, rest) == ("after", "")
    assert header.split()[:2] == ["epoch", "train_loss"]
    assert [row.split()[0] for row in rows] == ["0", "1", "2"]
    assert max(map(len, pieces(text))) < width
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_fit_leaves_its_table_and_its_bar_never_scrolls_at_any_width(sections, width):
    text = sections[str(width)]
    check_screen(text, width)
    bars = [piece for piece in pieces(text) if re.search(r"loss \d", piece)]
    assert len(bars) >= 3 * 24
    assert all("%" in bar for bar in bars)
    assert ("no room for train_mae" in text) == (width == 40)
    assert ("no room" in text) == (width < 60)


def test_the_check_of_the_screen_fails_for_a_bar_that_does_not_know_the_width(sections):
    with pytest.raises(AssertionError):
        check_screen(sections["broken"], 40)


def test_after_a_resize_the_bar_and_the_rows_keep_to_the_new_width(sections):
    before, after = sections["resize"].split("smaller")
    assert max(map(len, pieces(before))) > 80
    assert max(map(len, pieces(after))) < 30
    assert len(pieces(after)) > 30


def test_ctrl_c_clears_the_bar_and_ends_the_fit(sections):
    assert "\r" in sections["interrupt"]
    assert screen(sections["interrupt"], 80) == ["interrupted", ""]
