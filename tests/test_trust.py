"""Every finding of the second attack has a test that would fail again, or an answer in docs/trust.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
UNDOING, FITTED = "photos/test_undoing.py", "runs/test_fitted.py"

FINDINGS: dict[str, list[tuple[str, str]]] = {
    "X1": [("bench/test_renderers.py", "showing_a_store_runs_no_method_file_that_a_stored_plan_names")],
    "X2": [("engine/test_resume_trust.py", "a_plan_that_names_a_method_file_is_resumed_only_where_the_user_names_it")],
    "X3": [
        ("bench/test_worker.py", "no_run_of_a_bench_imports_a_module_of_the_working_folder"),
        ("bench/test_worker.py", "a_worker_imports_no_module_of_the_working_folder"),
        ("bench/test_worker.py", "the_script_of_an_array_imports_no_module_of_the_working_folder"),
        ("engine/test_launch.py", "no_process_of_a_run_imports_a_module_of_the_working_folder"),
    ],
    "X4": [(UNDOING, "neither_journal_nor_table_is_written_through_a_link")],
    "X5": [
        (UNDOING, "a_journal_of_a_stranger_is_refused_and_shown"),
        (UNDOING, "a_file_is_put_back_into_its_pile_alone"),
    ],
    "X6": [("nets/test_huggingface.py", "no_kernel_is_loaded_by_its_name")],
    "L1": [
        (UNDOING, "copies_whose_originals_became_links_to_them_are_kept"),
        (UNDOING, "a_link_that_was_left_at_the_old_place_is_no_photo"),
        (UNDOING, "a_pile_that_became_a_link_into_the_output_loses_nothing"),
    ],
    "L2": [("bench/test_grid.py", "a_grid_file_cannot_say_where_its_table_is_written")],
    "L3": [(UNDOING, "a_journal_whose_lines_name_a_photo_twice_deletes_none")],
    "L4": [(UNDOING, "not_even_a_journal_that_is_trusted_reaches_out_of_its_folder")],
    "L5": [(UNDOING, "a_photo_that_is_still_written_while_it_is_moved_stays")],
    "W1": [(UNDOING, "no_class_folder_that_is_a_link_is_written_into")],
    "W2": [("bench/test_worker.py", "no_log_is_written_through_a_link")],
    "W3": [("photos/test_hf_backbone.py", "no_hub_is_asked_for_a_backbone_that_only_an_earlier_fit_names")],
    "S1": [
        ("nets/test_huggingface.py", "the_checksum_is_that_of_the_weights_that_are_loaded"),
        ("nets/test_huggingface.py", "weights_lie_in_their_folder_and_are_safetensors"),
    ],
    "S2": [("photos/test_features.py", "a_photo_replaced_after_it_was_hashed_leaves_nothing_under_the_old_key")],
    "S3": [("data/test_cache.py", "one_flipped_bit_of_a_large_entry_is_noticed")],
    "S4": [
        ("models/test_photo_model.py", "numbers_that_are_none_or_overflow_are_refused"),
        ("models/test_photo_model.py", "a_temperature_that_is_none_is_refused"),
    ],
    "S5": [("recipe/test_recipe.py", "awkward_yaml_is_refused_with_a_sentence")],
    "S6": [("bench/test_renderers.py", "names_are_never_read_as_formulas_links_or_commands")],
    "U1": [
        ("test_tables.py", "a_table_is_read_as_it_was_written"),
        ("serve/test_label.py", "classes_that_look_like_formulas_are_learned_and_read_again"),
    ],
    "U2": [(UNDOING, "long_names_come_back")],
    "U3": [(UNDOING, "a_photo_that_cannot_be_taken_from_the_pile_leaves_nothing_behind")],
    "U4": [("photos/test_photo_fit.py", "out_may_be_a_long_name_and_a_link_is_refused_before_any_work")],
    "U5": [("photos/test_class_folders.py", "a_class_that_is_called_like_one_of_our_files_is_sorted_and_comes_back")],
    "U6": [],
    "U7": [("engine/test_checkpoint.py", "the_same_content_is_the_same_bytes")],
    "M1": [("data/test_decode.py", "a_tile_that_is_much_larger_than_its_tiff_is_refused")],
    "M2": [
        ("data/test_decode.py", "a_jpeg_of_many_scans_is_refused_before_it_costs_minutes"),
        ("data/test_decode_pool.py", "what_takes_too_long_or_kills_the_decoder_is_told_and_the_next_image_decoded"),
        ("serve/test_served.py", "an_image_is_not_decoded_further_when_its_client_has_gone"),
    ],
    "M3": [(FITTED, "labels_that_name_no_photo_are_not_opened")],
    "M4": [("nets/test_huggingface.py", "settings_that_ask_for_more_than_the_weights_cost_a_sentence")],
    "M5": [
        (FITTED, "what_is_no_file_of_ours_costs_a_sentence"),
        ("data/sources/test_shards.py", "a_name_of_gigabytes_is_not_read"),
        ("recipe/test_recipe.py", "a_file_too_long_for_a_recipe_is_not_parsed"),
        ("photos/test_features.py", "a_file_too_long_for_an_image_is_named_and_not_read"),
        ("photos/test_labels.py", "a_file_that_is_no_book_by_its_size_is_not_read"),
    ],
    "M6": [
        ("serve/test_server.py", "silent_and_slow_clients_do_not_keep_others_out"),
        ("serve/test_label.py", "those_who_wait_for_guesses_or_have_gone_keep_no_answer_out"),
        ("test_torture.py", "slow_clients_do_not_keep_others_waiting"),
    ],
    "T1": [(FITTED, "every_field_of_a_result_may_be_anything")],
    "T2": [
        (FITTED, "arrays_that_do_not_fit_are_refused_by_model_and_page"),
        ("photos/test_photo_fit.py", "an_earlier_run_that_is_damaged_is_named"),
        ("models/test_photo_model.py", "arrays_of_another_type_or_with_more_axes_are_refused"),
    ],
    "T3": [("serve/test_server.py", "only_its_own_pages_and_programs_here_are_answered")],
    "T4": [(UNDOING, "lines_that_no_journal_has_are_passed_over_at_little_cost")],
    "T5": [
        ("data/sources/test_shards.py", "odd_notes_of_a_file_are_a_sentence"),
        ("runs/test_lines.py", "what_is_no_line_is_told_passed_over_and_kept"),
        ("photos/test_features.py", "a_book_of_files_that_is_damaged_is_passed_over"),
    ],
    "C1": [("photos/test_photo_fit.py", "names_of_classes_are_printed_on_their_own_line")],
    "C2": [("photos/test_sorting.py", "no_cell_of_the_table_begins_like_a_formula")],
    "C3": [("bench/test_renderers.py", "names_are_never_read_as_formulas_links_or_commands")],
    "C4": [("bench/test_renderers.py", "names_are_never_read_as_formulas_links_or_commands")],
    "C5": [("bench/test_slurm.py", "a_store_that_would_change_the_script_is_refused")],
    "C6": [("photos/test_sort_command.py", "stopped_it_says_what_to_do_next")],
    "C7": [("engine/test_checkpoint.py", "a_full_disk_ends_the_run_with_a_sentence_and_the_last_good_checkpoint")],
    "C8": [],
}


@pytest.mark.parametrize("finding", FINDINGS)
def test_every_finding_has_a_test_or_an_answer(finding: str) -> None:
    page = (HERE.parent / "docs/trust.md").read_text("utf-8")
    for file, name in FINDINGS[finding]:
        assert re.search(rf"^def test_{name}\w*\(", (HERE / file).read_text("utf-8"), re.MULTILINE), (file, name)
    if not FINDINGS[finding]:
        assert f"**{finding}**" in page
    assert _mentioned(finding, page), f"{finding} is not in docs/trust.md"


def _mentioned(finding: str, page: str) -> bool:
    """By itself, or within a range such as S1-S3."""
    kind, number = finding[0], int(finding[1:])
    ranges = [(int(low), int(high or low)) for low, high in re.findall(rf"\b{kind}(\d)(?:-{kind}(\d))?", page)]
    return any(low <= number <= high for low, high in ranges)
