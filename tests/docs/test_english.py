"""The check of wording in `make lint`: what it reads, and where it reports a problem."""

import english
import pytest


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (english.python_sentences, 'x = 1\n\n# Draws the\n# weights anew.\ny = "anew"\n'),
        (english.python_sentences, 'def f():\n\n    """Draws the weights anew."""\n'),
        (english.cpp_sentences, "int x;\n\n// Draws the\n// weights anew.\nint anew;\n"),
        (english.markdown_sentences, "```\nanew\n```\nDraws the weights anew, not `anew`.\n"),
    ],
)
def test_checker_reads_prose_with_line_numbers_and_skips_code(reader, text):
    found = [(line, sentence) for line, sentence in reader(text) if "anew" in sentence]
    assert [line for line, _ in found] == [4 if reader is english.markdown_sentences else 3]


@pytest.mark.parametrize(
    ("subject", "accepted"),
    [
        ("ops: run small calls quickly", True),
        ("tests, csrc/cpu: name the rows", True),
        ("Run small calls quickly", False),
        ("ops: Run small calls", False),
        ("ops: run small calls.", False),
        (f"ops: run {'x' * 72}", False),
    ],
)
def test_subjects_have_a_scope_and_at_most_72_characters(subject, accepted):
    assert (not english.subject_problems(subject)) == accepted
