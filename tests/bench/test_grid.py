"""Tables are data: what the files say, what becomes of it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from osp.bench.cells import Choice, expand
from osp.bench.grid import Grid, find_grid, names, read_grid
from osp.cli.bench.options import parse_seeds
from osp.errors import UserError

DEMO = Choice(scale="demo", datasets=("digits",))


@pytest.mark.parametrize("name", names())
def test_every_table_of_the_package_is_read_and_its_published_numbers_have_a_place(name: str) -> None:
    grid = find_grid(name)
    assert grid.title
    assert grid.about
    if grid.kind == "settings":
        return
    table = expand(grid, Choice())
    assert set(grid.paper.rows) <= set(table.rows)
    assert set(grid.paper.columns) <= set(table.columns)
    assert sum(cell.paper is not None for cell in table.cells) == sum(
        value is not None for row in grid.paper.rows.values() for value in row
    )


@pytest.mark.parametrize(
    ("alias", "name"),
    [("figure4a", "figure-ratio"), ("Figure-4b", "figure-labels"), ("fig5", "figure-cam"), ("Table 1", "table1")],
)
def test_the_papers_numbers_are_other_names(alias: str, name: str) -> None:
    assert find_grid(alias).name == name


def test_the_total_is_made_smaller_only_where_it_does_not_fit_and_the_cell_says_so() -> None:
    """CIFAR-100: 500 per class less 100 labels and 50 validation leaves 350; 20,000 at ratio 0 would need 400."""
    table = expand(find_grid("figure4a"), Choice(methods=("supervised",), ratios=(0.0, 0.1, 0.2)))
    totals = [cell.plans[0].unlabeled for cell in table.cells]
    assert [total // 50 for total in (totals[0] or 0,)] == [350]
    assert totals[1] is not None
    assert int(totals[1] * 0.9) // 50 == 350
    assert totals[2] == 20_000
    assert ["smaller total" in cell.unlike for cell in table.cells] == [True, True, False]


def test_the_numbers_of_dacs_protocol_are_the_whole_training_set() -> None:
    for cell in expand(find_grid("dac-closed"), Choice(methods=("fixmatch",))).cells:
        if cell.plans:
            plan = cell.plans[0]
            classes = 6 if plan.data == "cifar10" else 20 if "20/80" in cell.column else 50
            labels = classes * plan.labels_per_class
            assert (plan.id_count or 0) + (plan.ood_count or 0) + labels == 50_000
            assert plan.val_per_class == 0


def test_another_data_set_takes_the_place_of_the_papers_and_has_no_published_number() -> None:
    table = expand(find_grid("table1"), Choice(scale="demo", datasets=("digits",), seeds=(0, 1)))
    assert table.columns == ("digits 0.3", "digits 0.6")
    assert {cell.paper for cell in table.cells} == {None}
    assert {plan.seed for plan in table.plans} == {0, 1}
    assert {plan.data for plan in table.plans} == {"digits"}


def test_rows_of_the_ablation_have_their_options() -> None:
    table = expand(find_grid("table4"), Choice(scale="demo", datasets=("digits",)))
    options = [cell.plans[0].options for cell in table.cells]
    assert [o.get("odc_unlabeled") for o in options] == [None, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert [o.get("odc_labeled") for o in options] == [None, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert [o.get("match") for o in options] == [None, "class", "class", "random", "class", "class"]
    assert options[-1]["alpha"] == 0.0


def test_numbers_of_images_take_the_place_of_ratios() -> None:
    choice = Choice(scale="demo", datasets=("digits",), methods=("osp",), fields={"id_count": 60, "ood_count": 90})
    plan = expand(find_grid("table5"), choice).plans[0]
    assert (plan.id_count, plan.ood_count, plan.ood_ratio, plan.unlabeled) == (60, 90, None, None)


@pytest.mark.parametrize("name", ["table1", "control"])
@pytest.mark.parametrize("how", ["fields", "settings"])
def test_with_numbers_of_images_no_column_is_named_after_a_ratio_or_stands_beside_the_papers(
    name: str, how: str
) -> None:
    counts = {"fields": {"ood_count": 90}, "settings": ("ood_count=90",)}[how]
    table = expand(find_grid(name), Choice(datasets=("mnist", "cifar10"), methods=("osp",), **{how: counts}))  # type: ignore[arg-type]
    assert table.columns == ("mnist", "cifar10")
    assert {cell.paper for cell in table.cells} == {None}
    assert {plan.ood_ratio for plan in table.plans} == {None}


@pytest.mark.parametrize(
    ("setting", "kept"),
    [
        ("labels_per_class=4", False),
        ("labels_per_class=10", True),
        ("unlabeled=20000", False),
        ("id_classes=[1, 2]", False),
        ("val_per_class=5", False),
        ("val_per_class=50", True),
        ("steps=10", True),
    ],
)
def test_the_papers_number_stands_beside_runs_on_its_own_split_only(setting: str, kept: bool) -> None:
    choice = Choice(datasets=("mnist",), methods=("osp",), ratios=(0.6,), settings=(setting,))
    (cell,) = expand(find_grid("table1"), choice).cells
    assert (cell.paper is not None) == kept


def test_lengths_that_differ_have_columns_of_their_own() -> None:
    grid = Grid(name="mine", title="t", methods=("osp",), datasets=("digits",), lengths=(0.011, 0.014))
    assert expand(grid, DEMO).columns == ("1.1% of the steps", "1.4% of the steps")


def test_a_figure_without_runs_has_none_whatever_methods_are_asked_for() -> None:
    assert expand(find_grid("figure2"), Choice(methods=("osp",))).cells == ()


def test_lengths_are_shares_of_the_scales_steps() -> None:
    table = expand(find_grid("figure-time"), Choice(scale="demo", datasets=("digits",), methods=("osp",)))
    assert [plan.steps for plan in table.plans] == [40, 80, 200, 400]


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"methods": ("fixmach",)}, "unknown method 'fixmach'. Did you mean 'fixmatch'?"),
        ({"datasets": ("cifar01",)}, "unknown data set 'cifar01'. Did you mean 'cifar10'?"),
        ({"ratios": (1.5,)}, "invalid value 1.5"),
        ({"settings": ("stepz=3",)}, "no option 'stepz', nor has the recipe"),
    ],
)
def test_unknown_words_are_refused_with_near_misses(choice: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as raised:
        expand(find_grid("table5"), Choice(**choice))  # type: ignore[arg-type]
    assert words in str(raised.value)


def test_an_unknown_table_is_refused_with_a_near_miss() -> None:
    with pytest.raises(UserError, match=r"Unknown table 'tabel1'. Did you mean 'table1'"):
        find_grid("tabel1")


def write(path: Path, text: str) -> Path:
    path.write_text(f"title: mine\n{text}")
    return path


def test_a_file_of_ones_own_is_a_table(tmp_path: Path) -> None:
    text = "methods: [t2t, osp]\nmeasure: auroc\ndatasets: [digits]\nratios: [0.3, 0.6]\nfields: {labels_per_class: 5}"
    grid = find_grid(str(write(tmp_path / "mine.yaml", text)))
    table = expand(grid, Choice(scale="demo"))
    assert (grid.name, table.columns) == ("mine", ("0.3", "0.6"))
    assert {plan.labels_per_class for plan in table.plans} == {5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method: [osp]", "Unknown field 'method' in the grid file. Did you mean 'methods'"),
        ("rows: [{name: a, method: osp, stepps: 3}]", "unknown field 'stepps' in the row 'a'. Did you mean 'steps'"),
        ("methods: [osp]\nfields: {ood_ration: 1}", "unknown field 'ood_ration' in `fields`. Did you mean 'ood_ratio'"),
        ("methods: [osp]\nfields: {options: 3}", "write names and values"),
        ("methods: [osp]\nfields: {options: {3: 4}}", "write names and values"),
        ("rows: [{name: a, method: osp, options: [alpha]}]", "write names and values"),
        ("methods: [./evil.py]", "files do not say which code is run"),
        ("rows: [{name: a, method: ./evil.py}]", "files do not say which code is run"),
        ("methods: [osp]\nmeasure: acuracy", "Did you mean 'accuracy'"),
        ("methods: [osp]\nratios: [2]", "between 0 and 1"),
        ("methods: [osp]\npaper: {columns: [a], rows: {osp: [1, 2]}}", "2 numbers for 1 columns"),
        ("datasets: [digits]", "neither `methods` nor `rows`"),
        ("methods: &a [osp]\nalso: *a", "aliases are not allowed"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_what_to_write(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path / "mine.yaml", text)
    with pytest.raises(UserError) as raised:
        read_grid(path)
    assert words in str(raised.value)
    assert "mine.yaml" in str(raised.value)


def test_an_unknown_method_in_a_file_is_refused() -> None:
    with pytest.raises(UserError, match=r"unknown method 'ospp' in the row 'ospp'. Did you mean 'osp'"):
        expand(Grid(name="mine", title="t", methods=("ospp",), datasets=("digits",)), Choice())


@pytest.mark.parametrize(
    "text", ["", "a", "3-1", "0-", "-1", "1.5", "0-99999999999999999999", "0-9999999999999999999", "1" * 5000]
)
def test_seeds_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--seeds"):
        parse_seeds(text)


@pytest.mark.parametrize(
    "name", ["/tmp/README", "../../x", "..", "", "a/b", "a\\\\b", "a b", "x\\0", "C:x", "n" * 101, ".hidden"]
)
def test_a_grid_file_cannot_say_where_its_table_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "my table.yaml").write_text(f'title: t\nmethods: [osp]\nname: "{name}"\n')
    with pytest.raises(UserError, match="Use letters, digits, dots, dashes and underscores"):
        find_grid(str(tmp_path / "my table.yaml"))
    (tmp_path / "my table.yaml").write_text("title: t\nmethods: [osp]\n")
    assert find_grid(str(tmp_path / "my table.yaml")).name == "my table"


OWN = """from osp.methods import Method, Options
class Mine(Method):
    class Options(Options):
        fairness: float = 1.0
    def losses(self, batch, step): return {"loss": self.logits(batch["labeled"]).sum()}
"""


def test_a_file_may_have_rows_of_a_method_file_that_the_command_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "mine.yaml").write_text(
        "title: Mine\ndatasets: [digits]\nrows:\n- fixmatch\n- {method: ./mine.py}\n"
        "- {method: mine.py, options: {fairness: 0}}\n"
    )
    for named in ((), ("fixmatch",), ("./other.py",)):
        with pytest.raises(
            UserError, match=r"names the method file \./mine\.py.* name it yourself: --methods fixmatch,\./mine\.py"
        ):
            find_grid("mine.yaml", named)
    for path in ("./mine.py", "mine.py", str(tmp_path / "mine.py")):
        choice = Choice(scale="demo", methods=("fixmatch", path))
        table = expand(find_grid("mine.yaml", choice.methods), choice)
        assert table.rows == ("fixmatch", "./mine.py", "mine.py, fairness=0")
        assert [plan.options.get("fairness") for plan in table.plans] == [None, 1.0, 0.0]
        only = Choice(scale="demo", methods=(path,))
        assert expand(find_grid("mine.yaml", only.methods), only).rows == table.rows[1:]


def test_several_measures_are_one_for_the_tables_and_others_beside_it() -> None:
    grid = Grid.model_validate({"name": "own", "title": "Own", "measure": ["auroc", "accuracy"], "also": ["seconds"]})
    assert (grid.measure, grid.also) == ("auroc", ("accuracy", "seconds"))
