"""Every shipped check is proven to find, to pass and to admit what it cannot see."""

from __future__ import annotations

import pytest

from tests.coverage import PAGE, lacking, page, proofs, shipped


@pytest.mark.slow
def test_no_check_lacks_a_proof() -> None:
    """A check has a fault that it finds, a healthy subject, and a missing reading."""
    assert lacking(proofs()) == []


def test_marks_name_checks_that_exist() -> None:
    """A mark for a check that was renamed proves nothing."""
    known = {*shipped()}
    assert [proof for proof in proofs() if proof.check not in known] == []


def test_the_page_is_what_the_tests_say() -> None:
    """docs/internals/coverage.md is made from the marks: python -m tests.coverage."""
    assert PAGE.read_text(encoding="utf-8") == page(proofs())
