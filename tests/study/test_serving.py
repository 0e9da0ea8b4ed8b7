"""Plans of serving are compared by a study, since a search is over plans of training."""

import json


def test_a_refused_search_of_decode_names_the_study_that_compares_plans(scaleout):
    code, _, error = scaleout("search", "llama-3-8b", "--set", "mode=decode", "--topology", "dgx-h200-1")
    assert code == 2
    assert "compare plans of decode with a study, such as `scaleout study serving`" in error


def test_the_study_counts_what_it_leaves_out_as_too_large_once(scaleout, tmp_path):
    """Said were 24 simulated, of which 18 fit, and 6 left out, where those 6 were the ones that do not fit."""
    study = tmp_path / "small.yaml"
    study.write_text(
        "workload: llama-3-70b\ntopology: dgx-h200-1\nschedule: baseline\nwhere: fits\n"
        "set: {mode: decode, batch_per_replica: 8}\n"
        "zip: {set: {tensor_parallel: [1, 8], data_parallel: [8, 1]}}\n"
    )
    code, out, _ = scaleout("study", study, "--output", tmp_path / "found", "--no-report", "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["cases"], found["ok"], found["left_out"], found["unfit"]) == (2, 1, 1, 0)
