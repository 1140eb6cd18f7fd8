"""A file that is no script, or a hostile one, is one sentence and never an exception."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.lint import LintResult, lint

WORDS = (
    "if rank == 0:", "dist.barrier()", "import torch.distributed as dist", "def f(rank):",
    "return", "    ", "        ", "for x in y:", "continue", "else:", "class A(B):", "self.f()",
    "with a as b:", "try:", "except E:", "rank", "f(*a, **k)", "@record", "lambda: f()",
    "match x:", "case [1, *_]:", "dist.init_process_group(", ")", "#preflight:ignore[", "]",
    "'''", "\\", "x = y = rank[::2]", "async def g():", "await f()", "x: int = f()", "(yield)",
    "DataLoader(x[rank::w])", "os.environ['A']='0'",
)  # fmt: skip


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x7fELF\0\0", "it contains NUL bytes"),
        (b"x = '\xff'\n", "its text does not match its encoding"),
        (b"# coding: nonsense\n", "unknown encoding: nonsense"),
        (b"# coding: undefined\n", "its text does not match its encoding"),
        (b"print 'x'\n", "it is Python 2 (line 1)"),
        (b"try:\n    f()\nexcept E, e:\n    pass\n", "it is Python 2"),
        (b"def f(:\n", "cannot parse it (line 1)"),
        (b'{"cells": []}', "it is a notebook"),
        (b"(" * 5000, "cannot parse it"),
        (b"import " + b"a." * 200 + b"b as c\n", "a name of over 256 characters"),
        (b"import a\\\n" + b"." * 1 + b"b\\\n.c" * 200 + b"\n", "a name of over 256 characters"),
        (b"class " + b"a" * 300 + b":\n    pass\n", "a name of over 256 characters"),
        (b"f(" + b"a" * 300 + b"=1)\n", "a name of over 256 characters"),
        (b"y = '', 'a'\nx = f'" + b"{rank}" * 3000 + b"'\n", "an f-string of over 16 KiB"),
        (
            b'x = 1  # it\'s\ny = RF"""' + b"{rank}\n" * 3000 + b'"""\n',
            "an f-string of over 16 KiB",
        ),
        (b"x = " + b"-" * 100000 + b"1\n", "nested too deeply"),
        (b"x = " + b"1+" * 30000 + b"1\n", "nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_read(content: bytes, reason: str) -> None:
    """It says why, and what to do."""
    unread = lint(content, "train.py").unread
    assert unread is not None
    assert reason in unread.reason
    assert unread.remedy


@pytest.mark.parametrize(
    "data", ["x = 'f{}'\n", '"""{}"""\n', "# f'{}\n", "x = b'{}'\n", "f'a'  # {}\n"]
)
def test_long_data_that_is_no_name_is_read(data: str) -> None:
    """A script with a string or a comment of any length is checked."""
    assert lint(data.format("import " + "a" * 20000 + " 1.5" * 99).encode(), "a.py").unread is None


def test_other_encodings_are_read() -> None:
    """A file may name its own, or begin with a byte order mark; an empty one has no findings."""
    for content in (b"# coding: latin-1\nx = '\xe9'\n", b"\xef\xbb\xbfx = 1\n", b"", b"\r\n\x0c"):
        linted = lint(content, "t.py")
        assert linted.unread is None
        assert not linted.distributed


@given(st.binary(max_size=300))
def test_any_bytes(content: bytes) -> None:
    """Whatever is in a file, an answer comes."""
    assert isinstance(lint(content, "t.py"), LintResult)


@given(st.lists(st.sampled_from(WORDS), max_size=30), st.sampled_from(("\n", " ", "\n    ")))
def test_any_words(words: list[str], between: str) -> None:
    """Half a script, or one in wild order, is no exception either."""
    assert isinstance(lint(between.join(words).encode(), "t.py"), LintResult)


@given(st.lists(st.sampled_from(WORDS), max_size=12), st.integers(0, 3))
def test_code_that_is_code(words: list[str], deep: int) -> None:
    """Whatever Python accepts is checked, and findings name lines of the file."""
    lines = ["import torch.distributed as dist"]
    for word in words:
        each = "    " * deep + word
        try:
            ast.parse("\n".join([*lines, each]))
        except (SyntaxError, ValueError):
            continue
        lines.append(each)
    linted = lint("\n".join(lines).encode(), "t.py")
    assert linted.unread is None
    assert all(1 <= one.line <= linted.lines for one in linted.findings)
