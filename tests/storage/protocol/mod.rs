//! The rules for a partition's two blobs, line by line: each test is named after its line, and runs in memory and in
//! Azurite.
//!
//! The lines: identity; age; claim, renew, steal and release; epoch; adopt; checkpoint; pin; handoff; presence; reset; two
//! trees. Beside them what the systems before this one asked for, and what other SDKs leave behind.

mod adopt;
mod age;
mod checkpoint;
mod claim;
mod epoch;
mod fence;
mod group;
mod handoff;
mod identity;
mod imported;
mod lease_scope;
mod pin;
mod presence;
mod release;
mod reset;
mod reset_faults;
mod sources;
mod tolerance;
mod two_trees;

/// One test of each rule, on a bench of its own. A rule that is in no list is dead code, and so an error.
macro_rules! tests {
    ($bench:expr; $($file:ident { $($rule:ident,)+ })+) => {
        $($(
            #[tokio::test]
            async fn $rule() {
                crate::protocol::$file::$rule($bench).await;
            }
        )+)+
    };
    ($bench:expr) => {
        tests! { $bench;
            identity {
                identity_incarnation_is_the_servers_time_of_the_first_answer_and_random,
                identity_the_greater_incarnation_is_the_newer,
                identity_a_record_is_mine_if_owner_and_incarnation_are_mine,
                identity_an_earlier_me_is_claimed_under_its_etag_at_any_time,
                identity_a_greater_one_that_is_fresh_replaces_me,
                identity_a_greater_one_that_has_expired_is_like_any_other_owner,
                identity_of_two_lives_at_once_the_newer_stays,
                identity_a_late_write_of_mine_that_landed_is_claimed_again_and_never_renewed_unrun,
                identity_operations_on_one_partition_inside_one_instance_are_serial,
                identity_answers_of_an_earlier_tenure_are_dropped,
                identity_answers_of_an_earlier_tenure_are_dropped_while_the_next_one_begins,
                identity_a_checkpoint_under_way_does_not_outlive_its_tenure,
                identity_a_record_that_a_renewal_created_begins_a_tenure_even_if_the_answer_is_lost,
                identity_what_a_renewal_that_was_given_up_created_can_be_renewed_and_released,
            }
            age {
                age_is_the_date_of_the_answer_per_page_minus_last_modified,
                age_is_clamped_at_zero,
                age_another_is_dead_two_seconds_of_grace_past_the_expiry,
                age_a_record_without_incarnation_is_dead_after_the_peer_expiry_of_180_s,
                age_mine_counts_from_before_sending_the_last_write_that_succeeded,
            }
            claim {
                claim_1_no_blob_known_creates,
                claim_1_no_blob_known_overwrites_nothing,
                claim_1_a_blob_known_is_matched,
                claim_1_a_blob_known_that_has_changed_is_not_overwritten_by_a_claim,
                claim_1_a_blob_known_that_has_changed_is_not_overwritten_by_a_renewal,
                claim_1_a_blob_known_that_has_changed_is_not_overwritten_by_a_release,
                claim_1_404_under_match_creates,
                claim_1_404_under_the_match_of_a_renewal_creates,
                claim_1_what_is_created_after_404_overwrites_nothing,
                claim_1_of_two_that_find_it_gone_one_creates,
                claim_1_409_and_412_are_conflicts_and_looked_into,
                claim_1_no_answer_is_unknown_and_looked_into,
                claim_2_a_renewal_found_to_be_mine_is_won_with_the_age_of_the_record_read,
                claim_2_a_renewal_found_past_half_the_expiry_is_written_anew_under_that_etag,
                claim_2_a_claim_found_to_be_mine_is_written_anew_before_it_counts,
                claim_2_a_steal_found_to_be_mine_is_written_anew_before_it_counts,
                claim_2_what_is_written_anew_overwrites_nothing,
                claim_2_etag_unchanged_was_not_applied_and_is_tried_again,
                claim_2_no_blob_was_not_applied_and_is_tried_again,
                claim_2_trying_again_is_bounded,
                claim_2_else_it_is_lost_to_whom_the_record_names,
                claim_2_of_two_that_claim_at_once_one_wins_whatever_gets_lost,
                claim_2_of_a_renewal_and_a_steal_at_once_one_wins_whatever_gets_lost,
            }
            release {
                claim_2_a_release_that_finds_another_owner_is_lost,
                claim_2_a_release_that_finds_nothing_is_lost,
                claim_2_a_release_that_finds_it_still_mine_is_tried_again_under_that_etag,
                claim_2_a_release_tried_again_overwrites_nothing,
                claim_2_of_a_release_and_a_steal_at_once_the_thief_keeps_what_it_won,
                claim_3_a_read_that_fails_leaves_it_undecided,
                claim_3_the_previous_belief_stands,
                claim_3_a_renewal_is_retried_while_the_lease_lasts,
                claim_3_after_the_lease_deadline_a_renewal_is_still_retried,
                claim_4_losing_is_an_outcome_and_no_error,
                claim_4_won_carries_the_etag_the_age_and_the_record,
                claim_4_a_release_writes_an_empty_ownerid_and_keeps_handoffto,
                claim_4_what_was_released_is_nobodys_and_can_be_claimed_at_once,
                claim_4_a_renewal_keeps_handoffto_and_every_key_it_does_not_change,
            }
            epoch {
                epoch_1_where_there_was_no_record_it_is_one_more_than_the_servers_time,
                epoch_1_it_is_one_more_than_that_of_the_record_that_the_claim_is_over,
                epoch_1_it_grows_with_every_tenure_within_a_second,
                epoch_1_a_renewal_that_creates_the_record_has_one_of_its_own,
                epoch_1_a_claim_that_is_written_again_is_another_tenure,
                epoch_2_renewals_marks_and_releases_keep_it,
                epoch_3_over_a_young_record_without_one_a_tenure_begins_two_seconds_later,
                epoch_3_what_is_taken_meanwhile_is_lost,
                epoch_3_a_record_that_is_old_enough_is_claimed_over_at_once,
                epoch_4_a_record_of_mine_with_another_epoch_is_not_the_tenures,
                epoch_6_that_of_the_other_tree_counts_where_it_was_seen,
                epoch_of_two_that_take_from_each_other_each_tenure_has_a_greater_one,
            }
            adopt {
                adopt_0_every_win_is_to_be_adopted,
                adopt_1_the_checkpoint_is_read,
                adopt_2_the_ownership_is_read_after_the_checkpoint_never_before_and_never_at_the_same_time,
                adopt_2_an_adoption_interrupted_by_the_next_owner_is_lost,
                adopt_2_not_mine_is_lost_and_nothing_is_written,
                adopt_3_the_metadata_read_is_written_back_byte_for_byte_plus_ownerid_under_match,
                adopt_3_conflict_goes_to_1,
                adopt_3_unknown_goes_to_1,
                adopt_3_is_bounded_and_backed_off_then_contended,
                adopt_4_no_blob_pins_the_start_with_ownerid,
                adopt_4_a_blob_without_a_position_is_pinned_too_and_keeps_its_other_keys,
                adopt_4_conflict_or_unknown_goes_to_1,
                adopt_4_a_group_that_dies_before_its_first_checkpoint_loses_nothing,
                adopt_4_of_two_that_pin_at_once_one_start_stands,
            }
            fence {
                adopt_4_the_fence_is_complete_once_a_start_is_pinned,
                adopt_4_without_a_known_start_nothing_is_pinned,
                adopt_4_without_a_pin_the_ownership_is_verified_before_the_first_create,
                adopt_4_that_single_write_of_a_displaced_owner_is_not_lost_and_moves_nothing_back,
                adopt_rule_an_etag_that_was_read_is_used_only_if_the_ownership_was_seen_to_be_mine_after_that,
            }
            checkpoint {
                checkpoint_1_not_beyond_the_last_written_position_is_nothing_to_do,
                checkpoint_2_writes_position_ownerid_and_updated_and_keeps_every_other_key,
                checkpoint_2_is_written_under_the_etag_of_the_one_before,
                checkpoint_2_overwrites_nothing_that_it_has_not_seen,
                checkpoint_2_needs_no_extra_request_in_the_steady_state,
                checkpoint_3_conflict_unknown_or_404_read_the_checkpoint_and_after_its_answer_the_ownership,
                checkpoint_3_a_checkpoint_interrupted_by_the_next_owner_is_fenced,
                checkpoint_3_not_mine_is_fenced_whatever_is_stored,
                checkpoint_3_stored_equal_is_written_and_its_etag_goes_on,
                checkpoint_3_stored_ahead_is_superseded_and_becomes_the_last_written_position_with_its_etag,
                checkpoint_3_stored_behind_is_written_again_under_the_new_etag,
                checkpoint_3_a_stored_position_without_a_number_is_replaced_and_reported,
                checkpoint_3_what_is_written_again_overwrites_nothing,
                checkpoint_3_blob_absent_verifies_the_ownership_then_creates_with_the_pending_position,
                checkpoint_3_what_is_created_overwrites_nothing,
                checkpoint_3_of_two_that_checkpoint_at_once_ours_moves_nothing_back,
                checkpoint_4_bounded_then_contended_and_the_other_writer_is_named,
                checkpoint_4_the_position_stays_pending_and_is_written_the_next_time,
                replace_moves_an_adopted_checkpoint_anywhere_and_keeps_every_other_key,
                replace_is_refused_if_anything_was_written_since_the_adoption_or_may_have_been,
            }
            pin {
                pin_creates_a_first_checkpoint_and_asks_for_no_ownership,
                pin_never_touches_one_that_is_there,
                pin_is_where_the_next_owner_starts,
                pin_outlives_lost_answers,
                pin_is_bounded_then_contended,
                pin_of_several_at_once_one_stands,
                pin_writes_nothing_where_the_other_tree_has_a_checkpoint,
                pin_lets_a_checkpoint_that_comes_about_in_the_other_tree_count,
                pin_gives_way_to_a_smaller_checkpoint_in_the_other_tree,
                pin_lets_no_checkpoint_there_count_after_the_first_one_here,
                pin_there_is_taken_over_as_a_start,
                pin_gives_way_to_an_owner_that_adopted_before,
                pin_gives_way_whatever_gets_lost,
                pin_is_marked_until_the_first_checkpoint,
                pin_sees_nothing_in_a_tree_that_is_ignored,
            }
            handoff {
                handoff_1_the_thief_marks_and_copies_every_other_key,
                handoff_1_only_a_record_younger_than_half_the_expiry,
                handoff_1_only_a_record_of_a_cooperative_owner,
                handoff_1_not_one_that_another_has_asked_for,
                handoff_1_nothing_that_is_released_or_mine,
                handoff_1_a_mark_overwrites_nothing,
                handoff_1_of_a_mark_and_a_renewal_at_once_neither_is_lost,
                handoff_1_of_two_that_ask_at_once_one_stands,
                claim_2_a_mark_found_on_the_record_of_the_same_owner_is_standing,
                claim_2_a_mark_that_was_not_applied_is_tried_again,
                claim_2_a_mark_on_the_record_of_another_owner_is_lost,
                claim_3_a_mark_whose_read_fails_is_undecided,
                handoff_2_the_victim_sees_it_by_the_renewal_that_conflicts,
                handoff_2_the_acknowledgement_is_written_even_over_a_young_record,
                handoff_2_an_acknowledgement_that_was_applied_stands,
                handoff_2_the_victim_renews_while_draining,
                handoff_2_a_release_that_meets_the_mark_keeps_it,
                handoff_2_of_a_mark_and_a_release_at_once_the_record_says_what_both_were_told,
                handoff_3_what_is_released_for_the_thief_is_taken_and_repeats_no_event,
                handoff_3_what_is_released_for_another_or_for_nobody_is_over,
                handoff_3_once_the_owner_has_changed_it_is_over,
                handoff_3_a_victim_that_has_started_anew_was_not_asked,
                handoff_4_a_young_record_is_no_acknowledgement,
                handoff_4_defaults_to_half_the_expiry_and_a_deadline_then_three_quarters,
                handoff_4_without_an_acknowledgement_it_is_stolen_under_a_fresh_etag,
                handoff_4_without_the_release_it_is_stolen,
                handoff_4_a_steal_that_meets_a_renewal_or_the_release_is_lost_and_pursued_further,
                handoff_4_a_mark_that_is_erased_is_written_again_a_few_times,
            }
            presence {
                presence_names_owner_and_incarnation,
                presence_is_written_only_under_its_own_etag,
                presence_outlives_lost_answers,
                presence_404_on_ones_own_is_to_be_declared_dead,
                presence_broken_by_another_is_to_be_declared_dead,
                presence_of_a_greater_incarnation_that_is_fresh_replaces_me,
                presence_of_an_earlier_incarnation_is_written_over,
                presence_is_withdrawn_by_its_own_life_alone,
                presence_older_than_ten_expiries_is_deleted_by_anyone_under_its_etag,
                presence_blobs_that_cannot_be_read_are_reported_and_hide_no_other,
            }
            lease_scope {
                lease_scope_is_in_every_record_that_is_claimed_and_in_none_that_is_released,
                lease_scope_the_thief_breaks_the_presence_under_its_etag,
                lease_scope_what_is_not_there_is_created_broken,
                lease_scope_who_is_declared_dead_already_is_not_declared_dead_again,
                lease_scope_of_two_that_break_at_once_both_may_go_on,
                lease_scope_an_owner_that_was_faster_is_alive,
                lease_scope_an_earlier_life_whose_name_a_later_one_has_cannot_renew,
                lease_scope_breaking_outlives_lost_answers,
                lease_scope_to_read_a_record_is_not_to_rewrite_it,
                lease_scope_what_was_taken_over_is_lost_to_the_one_that_rewrites,
                lease_scope_changes_with_a_rewriting,
                lease_scope_an_owner_is_asked_as_long_as_its_presence_is_young,
                lease_scope_nobody_is_asked_by_the_presence_of_another_life_or_a_broken_one,
            }
            reset {
                reset_what_was_never_owned_is_created,
                reset_what_was_released_or_has_expired_is_free,
                reset_a_live_owner_is_displaced_and_has_it_back,
                reset_every_record_of_an_operator_names_it,
                reset_keeps_what_a_partition_was_measured_to_be,
                reset_who_is_present_is_not_declared_dead,
                reset_who_was_present_is_declared_dead_first,
                reset_who_was_faster_than_the_verdict_lives,
                reset_a_reservation_that_holds_goes_on,
                reset_after_a_reset_returns_it_to_the_same_owner,
                reset_what_a_live_owner_asked_for_goes_to_it,
                reset_another_operator_that_lives_is_busy,
                reset_after_a_dead_operator_inherits_its_owner,
                reset_again_by_the_same_operator_inherits_it,
                reset_beside_a_foreign_owner_is_refused,
                reset_beside_a_foreign_owner_waits_and_renews,
                reset_what_a_foreign_owner_left_waits_too,
                reset_waits_again_after_a_foreign_checkpoint,
                reset_what_a_foreign_owner_takes_meanwhile_is_lost,
                reset_what_is_owned_in_the_other_tree_is_refused,
                reset_where_there_is_no_checkpoint_makes_the_first,
                reset_to_where_it_is_writes_all_the_same,
                reset_is_undone_by_no_checkpoint_of_before,
                reset_moves_a_checkpoint_anywhere,
                reset_keeps_every_other_key,
                reset_is_not_undone_by_the_other_tree,
                reset_of_several_partitions_reports_on_each,
                reset_of_one_partition_twice_at_once_is_refused,
            }
            reset_faults {
                reset_outlives_one_fault_at_each_request,
                reset_outlives_one_fault_at_a_first_checkpoint,
                reset_that_is_cut_off_reports_what_is_so,
                reset_that_is_overtaken_reports_what_is_so,
                reset_lost_with_a_write_in_doubt_is_unsure,
                reset_in_doubt_is_decided_by_the_next_adoption,
                reset_over_a_record_that_was_renewed_looks_again,
                reset_over_what_was_released_meanwhile_is_done,
                reset_of_two_at_once_reports_what_is_so,
                reset_by_two_that_overlap_reports_what_is_so,
                reset_that_dies_leaves_a_partition_to_claim,
            }
            two_trees {
                two_trees_always_differ_for_the_default_group,
                two_trees_a_fresh_ownership_there_is_counted,
                two_trees_a_fresh_ownership_there_is_neither_claimed_nor_stolen,
                two_trees_what_is_owned_there_is_not_claimed_over_a_released_or_expired_record_here,
                two_trees_until_released,
                two_trees_or_expired,
                two_trees_or_expired_by_the_peer_expiry,
                two_trees_split_wait_is_the_default,
                two_trees_split_refuse_does_not_start_while_one_is_owned_there,
                two_trees_split_ignore_sees_nothing_there,
                two_trees_it_is_read_again_right_before_claiming,
                two_trees_running_side_by_side_for_long_verbatim,
            }
            imported {
                two_trees_the_checkpoint_there_counts_while_ours_does_not_exist,
                two_trees_it_counts_if_ours_has_imported_and_it_differs_and_the_greater_wins,
                two_trees_it_does_not_count_if_ours_has_imported_and_it_is_the_same,
                two_trees_imported_is_kept_by_every_checkpoint,
                two_trees_imported_erased_by_a_peer_ours_counts,
                two_trees_a_replaced_checkpoint_is_not_undone_by_an_old_number,
                two_trees_a_replaced_checkpoint_is_not_undone_by_a_number_that_was_never_looked_at,
                two_trees_a_hub_made_anew_is_not_undone_by_an_old_number,
                two_trees_a_position_there_without_a_number_counts_only_where_there_is_none_here,
                two_trees_it_is_written_in_adopt_3_and_4_under_their_conditions,
                two_trees_the_checkpoint_is_read_again_when_a_partition_in_use_there_is_taken,
                two_trees_verbatim_looks_at_the_lower_one_in_turn,
            }
            sources {
                a2_the_list_tells_owner_position_last_modified_and_etag_per_partition,
                a8_two_claim_the_same_partition_at_once_one_wins,
                a8_of_twenty_that_claim_at_once_one_wins_and_the_others_go_on,
                a9_only_the_owner_updates_the_checkpoint,
                a9_success_refreshes_last_modified,
                a10_update_with_the_current_etag_on_failure_reread_stop_or_retry_with_the_new_one,
                a11_a_clock_that_is_minutes_ahead_takes_nobody_for_dead,
                a12_list_for_hub_and_group,
                a12_claim_a_list_and_be_told_which_succeeded,
                a12_update_checkpoint_answers_the_new_etag,
                d2_a_claim_creates_a_record_that_fails_if_it_exists_and_the_loser_moves_on,
                d3_abandoned_locks_are_overridden_by_age,
            }
            tolerance {
                tolerance_an_ownership_without_any_metadata,
                tolerance_an_ownership_with_other_keys_and_no_ownerid,
                tolerance_an_ownership_with_an_empty_ownerid_is_released_and_no_fault,
                tolerance_an_ownership_with_empty_values_beside_its_owner,
                tolerance_an_ownership_of_an_owner_with_an_odd_name,
                tolerance_an_ownership_with_keys_of_another_case,
                tolerance_an_ownership_with_extra_keys,
                tolerance_an_ownership_at_a_wrong_depth,
                tolerance_an_ownership_with_a_zero_length_name,
                tolerance_an_ownership_whose_last_segment_is_empty,
                tolerance_foreign_blobs_beside_the_records,
                tolerance_a_partition_that_is_no_number,
                tolerance_a_checkpoint_without_any_metadata,
                tolerance_a_checkpoint_with_empty_values,
                tolerance_a_checkpoint_with_an_empty_offset,
                tolerance_a_checkpoint_without_an_offset,
                tolerance_a_checkpoint_whose_offset_says_no_offset,
                tolerance_a_checkpoint_whose_offset_says_none,
                tolerance_a_checkpoint_with_an_empty_sequencenumber,
                tolerance_a_checkpoint_without_a_sequencenumber,
                tolerance_a_checkpoint_whose_sequencenumber_says_none,
                tolerance_a_checkpoint_with_text_for_a_number,
                tolerance_a_checkpoint_with_the_smallest_number_there_is,
                tolerance_a_checkpoint_with_text_for_an_offset_is_no_fault,
                tolerance_a_checkpoint_with_keys_of_another_case,
                tolerance_a_checkpoint_with_extra_keys,
                tolerance_a_checkpoint_at_a_wrong_depth,
                tolerance_a_checkpoint_with_a_zero_length_name,
                tolerance_many_bad_blobs_are_all_reported,
            }
        }
    };
}

mod memory {
    use crate::bench::Bench;

    tests!(Bench::in_memory());
}

mod azurite {
    use crate::bench::Bench;

    tests!(Bench::in_azurite().await);
}
