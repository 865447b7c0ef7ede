"""One thing, several things."""

from millrace.storage.plural import are, counted, listed, were


def test_counted():
    assert [counted(n, "node") for n in (0, 1, 2, 1797)] == ["0 nodes", "1 node", "2 nodes", "1,797 nodes"]
    assert [counted(n, "class", "classes") for n in (1, 3)] == ["1 class", "3 classes"]


def test_verbs_agree():
    assert [are(n) for n in (0, 1, 2)] == ["are", "is", "are"]
    assert [were(n) for n in (0, 1, 2)] == ["were", "was", "were"]


def test_of_many_names_the_first_are_listed():
    names = [str(i) for i in range(300)]
    assert listed(names[:20]) == ", ".join(names[:20])
    assert listed(names, " or ") == " or ".join(names[:20]) + " or ... (300 in all)"
    assert listed([]) == ""
