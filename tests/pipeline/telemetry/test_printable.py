"""Names that would move a terminal's cursor, or be read as markup."""

from millrace.pipeline.telemetry.printable import in_table, printable


def test_control_characters_become_escapes_and_lines_stay() -> None:
    assert printable("a\x1b[31mb\x07\u202ec\r") == "a\\x1b[31mb\\x07\\u202ec\\r"
    assert printable("ä\n\tß") == "ä\n\tß"


def test_a_cell_is_no_markup() -> None:
    assert in_table("a|b\n<img src=x> `c`\x1b [d](e) fanout = [3, 2]") == (
        "a\\|b \\<img src=x\\> \\`c\\`\\\\x1b [d]\\(e) fanout = [3, 2]"
    )
