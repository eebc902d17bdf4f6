"""The page of figures shows what results.json keeps, one figure a row."""

from tests.benchmarks import results


def test_the_page_shows_the_kept_figures() -> None:
    page = results.PAGE.read_text(encoding="utf-8")
    assert results.insert(page, results.read_results()) == page


def test_every_kept_group_says_where_and_when_and_what() -> None:
    for group in results.read_results().values():
        assert "Python" in group["machine"]
        assert "UTC" in group["machine"]
        assert group["rows"]
        assert all(row["what"] and row["runward"] for row in group["rows"])
