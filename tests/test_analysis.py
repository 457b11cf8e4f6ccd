"""The analysis room: transitions, intervals and tests against SciPy, published numbers, tables and figures."""
import csv
import math
import os
import random
import subprocess
import sys
import time
import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from selfcorr.analysis import audit, plots, printed, published, stats, tables
from selfcorr.analysis.transitions import CELLS, READINGS, Ratio, Transitions, transition_rows, transitions, transitions_from_counts
from selfcorr.calls import SelfcorrError

DATA = Path(__file__).parents[1] / "data" / "published"


# ----- transitions

def outcome_table(rows=400, seed=0):
    rng = random.Random(seed)
    return pd.DataFrame([(rng.choice("abc"), rng.choice("xy"), rng.choice(READINGS), rng.choice(READINGS)) for _ in range(rows)],
                        columns=["task", "method", "initial_reading", "final_reading"])


def test_transitions_agree_with_a_plain_loop():
    outcomes = outcome_table()
    t = transitions(outcomes)
    first, last = outcomes.initial_reading, outcomes.final_reading
    none = lambda s: ~s.isin(["right", "wrong"])
    assert t.n == len(outcomes)
    assert t.improved == ((first == "wrong") & (last == "right")).sum()
    assert t.degraded == ((first == "right") & (last == "wrong")).sum()
    assert t.left_out == (none(first) | none(last)).sum()
    assert t.accuracy_after == (last == "right").mean()
    assert t.accuracy_after_bounds[1] == pytest.approx(((last == "right") | none(last)).mean())
    assert t.accuracy_before_bounds[1] == pytest.approx(((first == "right") | none(first)).mean())
    assert sum(t.final_left_out.values()) == t.final_none and sum(t.initial_left_out.values()) == t.initial_none
    assert set(t.final_left_out) == {"unread", "refused", "truncated", "errored"}


def test_groups_add_up_whatever_the_grouping():
    outcomes = outcome_table()
    for by in ("task", ["task", "method"]):
        groups = transitions(outcomes, by=by)
        assert list(groups) == sorted(groups)
        total = Transitions()
        for t in groups.values(): total = total + t
        assert total == transitions(outcomes)
        assert len(pd.DataFrame(transition_rows(groups, by))) == len(groups)


def test_counting_unread_as_wrong_is_the_papers_way():
    outcomes = outcome_table()
    t = transitions(outcomes, unread="wrong")
    first, last = outcomes.initial_reading == "right", outcomes.final_reading == "right"
    assert (t.improved, t.degraded) == ((~first & last).sum(), (first & ~last).sum())
    assert t.net == last.sum() - first.sum()
    assert t.left_out == 0 and t.n_note == "N = 400"


def test_truncated_revisions_are_no_degradation():
    outcomes = pd.DataFrame({"initial_reading": ["right"] * 10, "final_reading": ["right"] * 6 + ["truncated"] * 4})
    t = transitions(outcomes)
    assert t.degraded == 0 and t.ratio.undefined
    assert t.accuracy_after_bounds == (0.6, 1.0)
    assert t.n_note == "N = 10; 4 not judged (last answer: 4 truncated)"


@pytest.mark.parametrize("table, words", [
    (pd.DataFrame({"initial_reading": ["right"]}), "unknown outcome column 'final_reading'"),
    (pd.DataFrame({"initial_reading": ["right"], "final_reading": ["rigth"]}), "did you mean right"),
    (pd.DataFrame({"initial_reading": ["right"], "final_reading": [None]}), "unknown reading 'None'"),
])
def test_bad_outcome_tables_get_one_clear_line(table, words):
    with pytest.raises(SelfcorrError, match=words) as error: transitions(table)
    assert "\n" not in str(error.value)


def test_empty_table_has_no_rates():
    t = transitions(pd.DataFrame({"initial_reading": [], "final_reading": []}))
    assert t.n == 0 and all(math.isnan(x) for x in (t.accuracy_after, t.repair_rate, t.preservation, t.damage_rate))
    assert str(t.ratio) == "—"


def test_ratio_order_and_print():
    ratios = [Ratio(3, 0), Ratio(0, 0), Ratio(1, 2), Ratio(0, 5), Ratio(1195, 8), Ratio(9, 0)]
    assert [str(r) for r in sorted(ratios, reverse=True)] == ["∞", "∞", "149:1", "0.50:1", "0:1", "—"]
    assert Ratio(3, 0) == Ratio(9, 0) and Ratio(1, 2) == Ratio(2, 4) and len({Ratio(1, 2), Ratio(2, 4)}) == 1
    assert str(pd.Series(ratios).max()) == "∞"


def test_ratios_print_as_the_paper_prints_them():
    cells = {p.id: p for p in printed.load_published("disc", DATA)}
    seen = 0
    for id, p in cells.items():
        if not id.endswith("/ratio"): continue
        base = id.removesuffix("ratio")
        assert str(Ratio(int(cells[base + "imp"].number), int(cells[base + "deg"].number))) == p.value
        seen += 1
    assert seen == 18


# ----- intervals and tests

def per_example(t):
    return np.repeat(np.arange(9), t.cells)


CASES = [transitions_from_counts(198, 149, 18, 10), transitions_from_counts(1792, 268, 650, 40),
         Transitions(40, 9, 6, 22, 60, 8, 3, 2, 5)]


@pytest.mark.parametrize("t", CASES)
def test_intervals_agree_with_scipy(t):
    codes = per_example(t)

    def statistic(measure):
        def compute(x, axis=-1):
            counts = {name: (x == i).sum(axis=axis) for i, name in enumerate(CELLS)}
            return stats.MEASURES[measure](counts, t.n)
        return compute
    names = ["accuracy_before", "accuracy_after", "net", "ratio", "repair_rate", "preservation", "damage_rate"]
    ours = stats.bootstrap(t, names, resamples=20_000, seed=1)
    for name in names:
        ref = scipy_stats.bootstrap((codes,), statistic(name), method="percentile", n_resamples=20_000, batch=2000, rng=np.random.default_rng(2))
        spread = 6 * ours[name].half_width / 1.96 / math.sqrt(20_000 * 0.025) + 1e-9  # Monte Carlo error of an outer percentile, generously
        assert ours[name].low == pytest.approx(ref.confidence_interval.low, abs=spread), name
        assert ours[name].high == pytest.approx(ref.confidence_interval.high, abs=spread), name


@pytest.mark.parametrize("kind", ["few distinct rows", "many distinct rows", "mixed"])
def test_score_intervals_agree_with_scipy(kind):
    rng = np.random.default_rng(3)
    em = (rng.random(2000) < 0.6) * 1.0
    f1 = {"few distinct rows": np.where(em == 1, 1, rng.integers(0, 5, 2000) / 5), "many distinct rows": rng.random(2000),
          "mixed": np.where(em == 1, 1, rng.random(2000))}[kind]
    ours = stats.bootstrap_means(dict(em=em, f1=f1), resamples=8000, seed=5)
    for name, values in (("em", em), ("f1", f1)):
        ref = scipy_stats.bootstrap((values,), np.mean, method="percentile", n_resamples=8000, batch=1000, rng=np.random.default_rng(4))
        spread = 6 * ref.standard_error / math.sqrt(8000 * 0.025)
        assert ours[name].value == values.mean()
        assert tuple(ours[name]) == pytest.approx(tuple(ref.confidence_interval), abs=spread)


def test_within_class_resampling_holds_the_class_fixed():
    t = transitions_from_counts(198, 149, 18, 10)
    within = stats.bootstrap(t, ["repair_rate"], within_class=True)["repair_rate"]
    lattice = [within.low * 49, within.high * 49]
    assert lattice == pytest.approx([round(x) for x in lattice], abs=0.51)
    assert stats.bootstrap(t, ["accuracy_before"], within_class=True)["accuracy_before"].half_width == 0


def test_intervals_repeat_and_do_not_depend_on_order():
    t = CASES[2]
    assert stats.bootstrap(t, seed=7) == stats.bootstrap(t, seed=7)
    assert stats.bootstrap(t, seed=7) != stats.bootstrap(t, seed=8)
    rng = np.random.default_rng(0)
    scores = rng.random((500, 2)).round(2)
    shuffled = scores[rng.permutation(500)]
    a, b = (stats.bootstrap_means(dict(a=s[:, 0], b=s[:, 1]), seed=1) for s in (scores, shuffled))
    assert all((a[k].low, a[k].high) == (b[k].low, b[k].high) for k in a)


def test_interval_edges():
    perfect = stats.bootstrap(transitions_from_counts(100, 100, 0, 0), ["accuracy_after", "repair_rate", "ratio"])
    assert tuple(perfect["accuracy_after"]) == (1, 1)
    assert math.isnan(perfect["repair_rate"].value) and perfect["repair_rate"].undefined == 1
    some = stats.bootstrap(transitions_from_counts(100, 50, 10, 1), ["ratio"])["ratio"]
    assert some.value == 10 and some.high == math.inf and 0 < some.low < 10
    assert all(math.isnan(i.low) for i in stats.bootstrap(Transitions(), ["accuracy_after", "repair_rate"]).values())


def test_score_bootstrap_memory_is_bounded():
    values = np.random.default_rng(0).random(60_000)
    tracemalloc.start()
    stats.bootstrap_means(dict(x=values), resamples=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


def test_bootstrap_is_far_faster_than_scipy():
    rng = np.random.default_rng(0)
    em = (rng.random(7405) < 0.6) * 1.0
    f1 = np.where(em == 1, 1, rng.integers(0, 60, 7405) / 60)
    scores = dict(em=em, f1=f1, precision=np.sqrt(f1), recall=f1 ** 2)
    started = time.perf_counter(); stats.bootstrap_means(scores); ours = time.perf_counter() - started
    started = time.perf_counter()
    for values in scores.values(): scipy_stats.bootstrap((values,), np.mean, method="percentile", n_resamples=1000, vectorized=True, rng=np.random.default_rng(0))
    assert ours < (time.perf_counter() - started) / 4  # a tenth and less on a quiet machine; benchmarks/bootstrap.py measures it


def test_mcnemar_against_scipy_for_all_small_counts():
    for i in range(13):
        for d in range(13):
            n = i + d
            if not n:
                assert stats.mcnemar(i, d) == stats.mcnemar(i, d, "mid-p") == stats.mcnemar(i, d, alternative="more_improved") == 1
                continue
            assert stats.mcnemar(i, d) == pytest.approx(scipy_stats.binomtest(i, n, 0.5).pvalue, abs=1e-12)
            for ours, theirs in (("more_improved", "greater"), ("more_degraded", "less")):
                exact = scipy_stats.binomtest(i, n, 0.5, alternative=theirs).pvalue
                assert stats.mcnemar(i, d, alternative=ours) == pytest.approx(exact, abs=1e-12)
                assert stats.mcnemar(i, d, "mid-p", ours) == pytest.approx(exact - scipy_stats.binom.pmf(i, n, 0.5) / 2, abs=1e-12)
            point = scipy_stats.binom.pmf(min(i, d), n, 0.5)
            expected = 1 - point / 2 if i == d else 2 * scipy_stats.binom.cdf(min(i, d), n, 0.5) - point
            assert stats.mcnemar(i, d, "mid-p") == pytest.approx(expected, abs=1e-12)
    assert 0 < stats.mcnemar(1687, 224) < 1e-250
    assert stats.mcnemar(5000, 5000) == 1


def test_wilson_against_scipy():
    for hits, n in [(0, 1), (1, 1), (5, 60), (60, 60), (7000, 7405)]:
        ci = scipy_stats.binomtest(hits, n).proportion_ci(method="wilson")
        assert tuple(stats.wilson(hits, n)) == pytest.approx((ci.low, ci.high), abs=1e-12)
    assert math.isnan(stats.wilson(0, 0).low)
    with pytest.raises(SelfcorrError): stats.wilson(5, 3)


# ----- published numbers

@pytest.fixture(scope="module")
def disc():
    return {v.number.id: v for v in published.verdicts("disc", folder=DATA)}


def test_every_number_of_tables_2_and_3_is_there(disc):
    by_item = {}
    for v in disc.values(): by_item.setdefault(v.number.item, []).append(v.number)
    assert len(by_item["Table 2"]) == 18 * 6 + 3 and len(by_item["Table 3"]) == 18
    intervals = [p for p in by_item["Table 2"] if p.low is not None]
    assert len(intervals) == 36 and {p.column for p in intervals} == {"Final", "Repair"}


def test_each_number_has_exactly_one_verdict(disc):
    numbers = printed.load_published("disc", DATA)
    assert [p.id for p in numbers] == list(disc)
    counts = published.verdict_counts(disc.values())
    assert sum(counts.values()) == len(numbers) and set(counts) == set(published.VERDICTS)
    assert all(v.explanation for v in disc.values())
    assert all(v.formula and v.inputs and all(i in disc for i in v.inputs) for v in disc.values() if v.verdict == "derived")


def test_the_contradictions_of_table_2(disc):
    bad = {id.removeprefix("disc/t2/") for id, v in disc.items() if v.verdict in ("inconsistent", "impossible")}
    assert bad == {"bbm/n", "bbm/sonnet-4.5/disc/final", "bbm/sonnet-4.5/disc/repair", "bbm/sonnet-4.5/cove/final", "bbm/sonnet-4.5/cove/repair",
                   "bbm/gpt-4o/disc/final", "bbm/gpt-4o/cove/final", "bbm/gpt-4o/self-refine/final", "bbm/gpt-4o/self-refine/repair"}
    assert disc["disc/t2/bbm/gpt-4o/disc/repair"].verdict == "derived"
    assert "1,792" in disc["disc/t2/bbm/gpt-4o/disc/repair"].explanation
    assert "1,774" in disc["disc/t2/bbm/sonnet-4.5/self-refine/final"].explanation


def test_contradictions_by_brute_force(disc):
    "The same findings from floats and loops, without the audit module"
    for model in ("sonnet-4.5", "gpt-4o"):
        for method in ("disc", "cove", "self-refine"):
            get = lambda c: disc[f"disc/t2/bbm/{model}/{method}/{c}"].number
            gained, lost = int(get("imp").number), int(get("deg").number)
            left = int(disc[f"disc/t{6 if model == 'sonnet-4.5' else 7}/word-sorting/{method}/n"].number.number)
            sizes = {1790, 1792, 1792 - 300 + left}
            final = repair = False
            for n in sizes:
                for start in range(n):
                    blocked = 1792 - n if n == 1792 - 300 + left else 0
                    if not any(abs(100 * s / base - 15.0) <= 0.1 for s in range(start, start + blocked + 1) for base in (n, 1792 if blocked else n)): continue
                    final |= abs(100 * (start + gained - lost) / n - float(get("final").number)) <= 0.05 + 1e-9
                    repair |= abs(100 * gained / (n - start) - float(get("repair").number)) <= 0.05 + 1e-9
            # looser about the start than the audit, so whatever fails here must fail there
            for name, fits in (("final", final), ("repair", repair)):
                if not fits: assert disc[get(name).id].verdict == "inconsistent"
                if disc[get(name).id].verdict == "derived": assert fits


def test_hotpotqa_f1_is_never_derived_from_exact_match_counts(disc):
    for id, v in disc.items():
        if id.startswith("disc/t2/hotpotqa") and id.endswith(("init", "final")): assert v.verdict == "pending" and v.number.unit == "F1 %"
        if id.startswith("disc/t2/hotpotqa") and id.endswith("repair"): assert v.verdict == "derived" and any(i.endswith("/em") for i in v.inputs)


def test_our_runs_stand_beside_and_change_no_finding(disc):
    ids = list(disc)
    beside = {id: published.Beside(1.0, "our run", 0.5, 1.5) for id in ids}
    for id, v in {v.number.id: v for v in published.verdicts("disc", replicated=beside, folder=DATA)}.items():
        assert v.beside is beside[id]
        assert v.verdict == ("replicated" if disc[id].verdict == "pending" else disc[id].verdict)


def test_raw_outputs_settle_a_number(disc):
    id = "disc/t2/bbm/sonnet-4.5/disc/final"
    def settle(value): return {v.number.id: v for v in published.verdicts("disc", recomputed={id: published.Beside(value, "raw")}, folder=DATA)}[id].verdict
    assert [settle(Fraction(100 * 1461, 1790)), settle(81.69), settle(81.3)] == ["exact", "rounding", "inconsistent"]


@pytest.mark.parametrize("printed_text, n", [("12.3", 8), ("54.0", 198), ("33.3", 3), ("0.5", 1000), ("66.6", 3), ("2.5", 40), ("99.9", 7), ("100", 9), ("0.0", 5)])
def test_grim_against_trying_every_count(printed_text, n):
    got = audit.grim(printed_text, n)
    for rule in audit.RULES:
        decimals = len(printed_text.partition(".")[2])
        fits = [k for k in range(n + 1) if str(audit.round_to(Fraction(100 * k, n), decimals, rule)) == printed_text]
        assert got.counts[rule] == ((fits[0], fits[-1]) if fits else None)


def test_rounding_rules_at_ties():
    tie = {r: str(audit.round_to(Fraction(1, 8), 2, r)) for r in audit.RULES}
    assert tie == {"half_up": "0.13", "half_even": "0.12", "half_down": "0.12", "truncation": "0.12"}
    assert str(audit.round_to(Fraction(375, 1000), 2, "half_even")) == "0.38"


def test_interval_check_passes_honest_intervals_and_fails_wrong_ones():
    rng = np.random.default_rng(0)
    fields = dict(paper="x", item="t", row="r", column="c", unit="%", note="", id="x")
    for n, k in [(198, 107), (49, 18), (1790, 1461), (7405, 300), (30, 1)]:
        for _ in range(20):
            low, high = np.percentile(rng.binomial(n, k / n, 1000) / n * 100, [2.5, 97.5])
            text = [f"{x:.1f}" for x in (100 * k / n, low, high)]
            number = printed.Published(**fields, value=text[0], number=printed.parse_printed(text[0]), decimals=1, n=n, low=printed.parse_printed(text[1]), high=printed.parse_printed(text[2]))
            assert audit.check_interval(number, n).holds
            assert not audit.check_interval(number, 4 * n).holds


def test_a_row_must_fit_one_starting_count():
    fields = dict(paper="x", item="t", row="r", unit="%", n=400, low=None, high=None, note="")
    def cell(name, text, unit="%"): return printed.Published(**{**fields, "unit": unit}, column=name, id=name, value=text, number=printed.parse_printed(text), decimals=len(text.partition(".")[2]))
    cells = dict(init=cell("init", "50"), improved=cell("improved", "40", "count"), degraded=cell("degraded", "10", "count"))
    # 50 % of 400 (no decimals) allows 198 to 201 right at first; 57.0 needs 198, 20.10 needs 201
    bad = audit.check_row({**cells, "final": cell("final", "57.0"), "repair": cell("repair", "20.10")}, [audit.Size(400, "stated")])
    assert [c.name for c in bad["repair"] if not c.holds] == ["one starting count for the row"]
    good = audit.check_row({**cells, "final": cell("final", "57.0"), "repair": cell("repair", "19.80")}, [audit.Size(400, "stated")])
    assert all(c.holds for checks in good.values() for c in checks)


def damaged(tmp_path, change):
    rows = list(csv.DictReader((DATA / "disc.csv").open(encoding="utf-8", newline="")))
    change(rows)
    with (tmp_path / "disc.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n"); writer.writeheader(); writer.writerows(rows)
    return tmp_path


@pytest.mark.parametrize("change, words", [
    (lambda r: r[20].update(id=r[19]["id"]), "already used in line 21"),
    (lambda r: r[20].update(number="81.7", value="81.6", decimals="1", unit="%"), "differs from the printed '81.6'"),
    (lambda r: r[10].update(decimals="2"), "decimals is '2'"),
    (lambda r: r[10].update(unit="percent"), "unknown unit 'percent'"),
    (lambda r: r[10].update(low="90.0", high="95.0"), "lies outside its interval"),
    (lambda r: r[10].update(low=""), "both low and high"),
    (lambda r: r[9].update(value="15,0", number="150"), "not a printed number"),
    (lambda r: r[9].update(n="17.5"), "not a whole number"),
    (lambda r: r[9].update(paper="ddrg"), "in the file of 'disc'"),
    (lambda r: r[9].update(row=r[9]["row"] + " "), "stray spaces"),
    (lambda r: r[15].update(row=r[9]["row"]), "is already in line 11"),
    (lambda r: r.pop(8), "lacks the number 'disc/t2/bbm/n'"),
])
def test_a_damaged_file_is_refused_with_its_line(tmp_path, change, words):
    with pytest.raises(SelfcorrError, match=words) as error: published.verdicts("disc", folder=damaged(tmp_path, change))
    assert "disc.csv" in str(error.value) and "\n" not in str(error.value)


def test_unknown_paper_and_odd_files(tmp_path):
    with pytest.raises(SelfcorrError, match="did you mean disc"): printed.load_published("disk", DATA)
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00bad")
    with pytest.raises(SelfcorrError, match="x.csv"): printed.load_published("x", tmp_path)
    (tmp_path / "y.csv").write_text(",".join(printed.COLUMNS) + "\n")
    with pytest.raises(SelfcorrError, match="holds no numbers"): printed.load_published("y", tmp_path)
    (tmp_path / "z.csv").write_text(",".join(printed.COLUMNS) + "\na,b\n")
    with pytest.raises(SelfcorrError, match="has not 13 fields"): printed.load_published("z", tmp_path)


def test_the_csv_holds_what_the_paper_prints():
    text = os.environ.get("SELFCORR_PAPERS")
    if not text: pytest.skip("SELFCORR_PAPERS is not set: the folder that holds the paper's text disc.md")
    lines = (Path(text) / "disc.md").read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Dataset\tModel\tMethod"))
    numbers = printed.load_published("disc", DATA)
    rows = {}
    for p in numbers:
        if p.item == "Table 2" and p.column != "N": rows.setdefault(p.row, []).append(p.printed.replace("[", "[").strip())
    assert list(rows.values()) == [line.split("\t")[3:] for line in lines[start + 1:start + 19]]


# ----- tables and figures

HOSTILE = ['<script>alert(1)</script>', "a | b", "\\input{/etc/passwd}", "100 % & $x_1$ ~^{}", "=1+1", 'say "hi", then\nleave', "[low, high]", "∞ — 0:1"]


def test_tables_escape_and_keep_their_shape():
    table = tables.Table(["A", "B"], [[h, "1"] for h in HOSTILE], caption=HOSTILE[0], notes=HOSTILE)
    page = tables.to_html(table)
    assert "<script" not in page and page.count("<tr>") == len(HOSTILE) + 1
    assert list(csv.reader(tables.to_csv(table).splitlines(keepends=True))) == [["A", "B"], *([h, "1"] for h in HOSTILE)]
    body = [line for line in tables.to_markdown(table).splitlines() if line.startswith("|")]
    assert len(body) == len(HOSTILE) + 2 and all(len(__import__("re").findall(r"(?<!\\)\|", line)) == 3 for line in body)
    tex = tables.to_latex(table)
    assert "\\input" not in tex and tex.count("\\\\\n") == len(HOSTILE) + 1 and "{[low" in tex


def test_writing_is_atomic_and_repeats(tmp_path, monkeypatch):
    table = tables.verdict_table(published.verdicts("disc", folder=DATA))
    first = [p.read_bytes() for p in tables.write_table(table, tmp_path / "t2")]
    assert first == [p.read_bytes() for p in tables.write_table(table, tmp_path / "t2")]
    monkeypatch.setattr(os, "replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError): tables.write_table(tables.Table(["x"], []), tmp_path / "t2")
    assert [p.read_bytes() for p in sorted(tmp_path.iterdir())] == [first[i] for i in (0, 3, 1, 2)]


def test_main_table_shows_every_cell_with_its_verdict():
    found = published.verdicts("disc", folder=DATA)
    t = transitions_from_counts(24, 4, 2, 3)
    ours = [tables.replicated_row("twins / agent / DISC", t, stats.bootstrap(t), simulated=True)]
    table = tables.main_table(found, ours)
    assert len(table.rows) == 19 and all(all(cell for cell in row) for row in table.rows)
    assert table.rows[0][2:] == ["15.0 p", "81.6 [79.7, 83.4] !", "1,195 p", "8 p", "149:1 d", "81.3 [79.3, 83.2] !", "1,790 !"]
    assert table.rows[-1][0] == "replicated" and "simulated" in table.rows[-1][1]
    assert len(tables.main_table(found, item="Table 3", columns=("DISC", "CoVe", "Self-Ref.")).rows) == 6


def test_accuracy_bounds_are_shown_when_answers_are_missing():
    outcomes = pd.DataFrame({"initial_reading": ["right", "wrong", "wrong"], "final_reading": ["truncated", "right", "wrong"]})
    row = tables.replicated_row("x", transitions(outcomes))
    assert row[2] == "33.3 (at best 66.7)" and "1 truncated" in row[-1]


def test_figure_bytes_repeat_in_another_process():
    code = ("import sys, hashlib; from pathlib import Path; from selfcorr.analysis.plots import *; from selfcorr.analysis.published import verdicts\n"
            f"d = precision_recall_figure(published_points(verdicts('disc', folder=Path({str(DATA)!r}))))\n"
            "print(*(hashlib.sha256(x).hexdigest() for x in (d.svg, d.pdf, d.png)))")
    runs = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=DATA.parents[1],
                           env={**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "SOURCE_DATE_EPOCH": epoch}).stdout for seed, zone, epoch in (("1", "UTC", "0"), ("2", "Asia/Tokyo", "99999999"))}
    assert len(runs) == 1


def test_figure_places_every_kind_of_point():
    points = [plots.Point("DISC", "a", Ratio(5, 0), 0.5), plots.Point("CoVe", "b", Ratio(0, 0), 0.0), plots.Point("CoVe", "c", Ratio(0, 4), 0.0),
              plots.Point("Own <b>$x$</b>", "d", Ratio(3, 2), math.nan), plots.Point("DISC", "agent", Ratio(2, 1), 0.3, simulated=True)]
    drawing = plots.precision_recall_figure(points)
    assert drawing.crowded == 0 and drawing.svg.startswith(b"<?xml") and drawing.pdf.startswith(b"%PDF")
    assert "agent (simulated)" in drawing.alt and "I:D ∞" in drawing.alt and "repair undefined" in drawing.alt
    assert b"<b>" not in drawing.svg
    only = plots.precision_recall_figure([plots.Point("DISC", "a", Ratio(0, 0), math.nan)])
    assert only.crowded == 0


def test_drawing_changes_no_global_setting():
    import matplotlib
    before = dict(matplotlib.rcParams)
    plots.precision_recall_figure([plots.Point("DISC", "a", Ratio(5, 1), 0.5)])
    assert dict(matplotlib.rcParams) == before


def test_importing_the_room_loads_no_drawing_or_table_library():
    code = ("import sys, selfcorr.analysis.transitions, selfcorr.analysis.published, selfcorr.analysis.tables, selfcorr.analysis.plots\n"
            "assert not {'matplotlib', 'pandas', 'scipy', 'pyarrow'} & set(sys.modules), set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=DATA.parents[1])
