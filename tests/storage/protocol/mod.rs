//! The rules for a partition's two blobs, line by line: each test is named after its line, and runs in memory, in
//! paused time, and in Azurite.
//!
//! The modules: identity; age; claim, release (renew, steal); epoch; adopt, fence; checkpoint; init_checkpoint;
//! handoff; heartbeat, lease_scope; reset, reset_faults; name_case. In addition the requirements of
//! earlier systems (sources), and the records of other SDKs (tolerance).

mod adopt;
mod age;
mod checkpoint;
mod claim;
mod epoch;
mod fence;
mod group;
mod handoff;
mod heartbeat;
mod identity;
mod init_checkpoint;
mod lease_scope;
mod name_case;
mod release;
mod reset;
mod reset_faults;
mod sources;
mod tolerance;

/// One test of each rule, on its own bench, in paused time or not. A rule that is in no list is unused code, and so an
/// error.
macro_rules! tests {
    ($bench:expr, $paused:tt; $($file:ident { $($rule:ident,)+ })+) => {
        $(mod $file {
            use super::Bench;

            $(
                #[tokio::test(start_paused = $paused)]
                async fn $rule() {
                    crate::protocol::$file::$rule($bench).await;
                }
            )+
        })+
    };
    ($bench:expr, start_paused = $paused:tt) => {
        tests! { $bench, $paused;
            identity {
                incarnation_is_server_time_and_random,
                the_greater_incarnation_is_the_newer,
                a_record_is_own_if_owner_and_incarnation_match,
                an_earlier_incarnation_is_claimed_at_any_time,
                a_fresh_later_incarnation_replaces_this_one,
                an_expired_later_incarnation_is_any_other_owner,
                of_two_incarnations_at_once_the_newer_remains,
                a_late_own_write_is_claimed_again_not_renewed,
                operations_on_one_partition_are_serial,
                responses_of_an_earlier_epoch_are_dropped,
                and_also_while_the_next_epoch_begins,
                a_checkpoint_does_not_outlive_its_epoch,
                a_renewal_that_creates_the_record_begins_an_epoch,
                an_abandoned_creation_can_be_renewed_and_released,
            }
            age {
                is_the_date_of_the_page_minus_last_modified,
                is_clamped_at_zero,
                another_owner_expires_two_seconds_of_grace_later,
                without_a_duration_the_foreign_one_applies,
                own_age_counts_from_before_the_last_success,
            }
            claim {
                line_1_no_known_blob_creates,
                line_1_no_known_blob_overwrites_nothing,
                line_1_a_known_blob_is_matched,
                line_1_a_claim_overwrites_no_changed_blob,
                line_1_a_renewal_overwrites_no_changed_blob,
                line_1_a_release_overwrites_no_changed_blob,
                line_1_404_under_match_creates,
                line_1_404_under_match_of_a_renewal_creates,
                line_1_a_creation_after_404_overwrites_nothing,
                line_1_of_two_that_find_no_blob_one_creates,
                line_1_409_and_412_are_verified_conflicts,
                line_1_no_response_is_indeterminate_and_verified,
                line_2_a_confirmed_renewal_has_the_age_of_the_read,
                line_2_an_old_confirmed_renewal_is_written_again,
                line_2_a_confirmed_claim_is_written_again,
                line_2_a_confirmed_steal_is_written_again,
                line_2_the_second_write_overwrites_nothing,
                line_2_an_unchanged_etag_means_retry,
                line_2_no_blob_means_retry,
                line_2_retries_are_bounded,
                line_2_otherwise_the_recorded_owner_has_won,
                line_2_of_two_claims_at_once_one_wins,
                line_2_of_a_renewal_and_a_steal_at_once_one_wins,
            }
            release {
                line_2_a_release_that_finds_another_owner_is_lost,
                line_2_a_release_that_finds_nothing_is_lost,
                line_2_a_release_that_finds_its_own_record_retries,
                line_2_a_retried_release_overwrites_nothing,
                line_2_of_a_release_and_a_steal_the_steal_wins,
                line_3_a_failed_read_leaves_it_indeterminate,
                line_3_the_previous_lease_remains_valid,
                line_3_a_renewal_is_retried_during_the_lease,
                line_3_a_renewal_is_retried_after_the_deadline,
                line_4_a_loss_is_an_outcome_and_no_error,
                line_4_a_win_has_the_etag_the_age_and_the_record,
                line_4_a_release_empties_ownerid_keeps_handoffto,
                line_4_a_released_partition_can_be_claimed_at_once,
                line_4_a_renewal_keeps_handoffto_and_other_keys,
            }
            epoch {
                line_1_without_a_record_it_follows_server_time,
                line_1_it_follows_the_epoch_of_the_claimed_record,
                line_1_it_grows_with_every_claim_within_a_second,
                line_1_a_creating_renewal_has_its_own_epoch,
                line_1_a_claim_written_again_has_another_epoch,
                line_2_renewals_requests_and_releases_keep_it,
                line_3_over_a_fresh_record_without_one_it_waits,
                line_3_a_partition_taken_meanwhile_is_lost,
                line_3_an_old_enough_record_is_claimed_at_once,
                line_4_a_record_with_another_epoch_is_not_own,
                owners_in_turn_always_have_a_greater_epoch,
            }
            adopt {
                line_0_every_win_must_be_adopted,
                line_1_the_checkpoint_is_read,
                line_2_the_ownership_is_read_after_the_checkpoint,
                line_2_an_adoption_interrupted_by_an_owner_is_lost,
                line_2_another_owner_means_lost_and_no_write,
                line_3_the_metadata_is_written_back_with_ownerid,
                line_3_a_conflict_goes_to_1,
                line_3_indeterminate_goes_to_1,
                line_3_is_bounded_and_backed_off_then_contended,
                line_4_without_a_blob_the_start_is_written,
                line_4_a_blob_without_a_position_gets_the_start,
                line_4_conflict_or_indeterminate_goes_to_1,
                line_4_a_crash_before_the_checkpoint_loses_nothing,
                line_4_of_two_starts_at_once_one_remains,
            }
            fence {
                adopt_4_the_fence_is_complete_with_a_start,
                adopt_4_without_a_known_start_none_is_written,
                adopt_4_without_a_start_the_create_is_verified,
                adopt_4_one_displaced_write_moves_nothing_back,
                adopt_rule_a_read_etag_needs_a_verified_ownership,
            }
            checkpoint {
                line_1_not_beyond_the_last_position_is_no_work,
                line_2_writes_its_keys_and_keeps_all_others,
                line_2_is_written_under_the_previous_etag,
                line_2_overwrites_no_unseen_write,
                line_2_needs_one_request_in_the_steady_state,
                line_3_failures_read_checkpoint_then_ownership,
                line_3_interrupted_by_the_next_owner_is_fenced,
                line_3_another_owner_fences_any_position,
                line_3_an_equal_position_is_written,
                line_3_a_later_position_supersedes,
                line_3_an_earlier_position_is_overwritten,
                line_3_a_position_without_a_number_is_replaced,
                line_3_the_second_write_overwrites_nothing,
                line_3_verification_precedes_the_creation,
                line_3_the_creation_overwrites_nothing,
                line_3_of_two_at_once_nothing_moves_back,
                line_4_is_bounded_then_names_the_other_writer,
                line_4_the_position_stays_pending,
                replace_moves_an_adopted_checkpoint_anywhere,
                replace_is_rejected_after_a_possible_write,
            }
            init_checkpoint {
                creates_a_first_checkpoint_without_an_ownership,
                never_changes_an_existing_checkpoint,
                the_next_owner_starts_there,
                survives_lost_responses,
                is_bounded_then_contended,
                of_several_at_once_one_remains,
                yields_to_an_owner_that_adopted_before,
                yields_even_if_responses_are_lost,
                is_flagged_until_the_first_checkpoint,
            }
            handoff {
                line_1_the_request_keeps_every_other_key,
                line_1_only_before_half_the_lease_duration,
                line_1_only_from_a_cooperative_owner,
                line_1_not_if_another_has_requested_it,
                line_1_not_a_released_or_own_record,
                line_1_a_request_overwrites_nothing,
                line_1_a_request_and_a_renewal_at_once_both_count,
                line_1_of_two_requests_at_once_one_remains,
                claim_2_a_request_found_in_the_record_counts,
                claim_2_a_request_that_was_not_applied_is_retried,
                claim_2_a_request_to_another_owner_is_lost,
                claim_3_a_request_with_a_failed_read_is_unknown,
                line_2_a_conflicting_renewal_shows_the_request,
                line_2_an_acknowledgment_replaces_a_fresh_record,
                line_2_an_applied_acknowledgment_counts,
                line_2_the_owner_renews_while_draining,
                line_2_a_release_keeps_the_request,
                line_2_a_request_and_a_release_at_once_agree,
                line_3_a_reserved_release_repeats_no_event,
                line_3_any_other_release_ends_it,
                line_3_a_change_of_owner_ends_it,
                line_3_a_later_incarnation_has_no_request,
                line_4_a_fresh_record_is_no_acknowledgment,
                line_4_without_an_acknowledgment_it_is_stolen,
                line_4_a_draining_owner_is_waited_for,
                line_4_a_steal_that_conflicts_is_polled_further,
                line_4_an_erased_request_is_repeated_a_few_times,
            }
            heartbeat {
                names_owner_and_incarnation,
                is_written_only_under_its_own_etag,
                survives_lost_responses,
                is_sent_again_if_it_hangs,
                ends_without_a_right_to_delete,
                a_404_on_its_own_means_declared_dead,
                invalidated_by_another_means_declared_dead,
                a_fresh_later_incarnation_replaces_this_one,
                an_earlier_incarnation_is_overwritten,
                is_removed_only_by_its_own_incarnation,
                after_ten_lease_durations_any_instance_deletes_it,
                a_heartbeat_of_longer_leases_is_kept_longer,
                unreadable_blobs_are_reported_and_hide_no_other,
            }
            lease_scope {
                is_in_claimed_records_and_not_in_released_ones,
                a_takeover_declares_dead_under_the_etag,
                a_missing_heartbeat_is_created_declared_dead,
                an_owner_is_declared_dead_once,
                two_declarations_at_once_both_succeed,
                an_owner_that_was_faster_is_alive,
                an_earlier_incarnation_cannot_renew,
                a_declaration_survives_lost_responses,
                reading_a_record_does_not_rewrite_it,
                a_rewrite_after_a_takeover_is_lost,
                changes_with_a_rewrite,
                requests_need_a_fresh_heartbeat,
                no_requests_by_an_invalid_heartbeat,
            }
            reset {
                a_never_owned_partition_is_created,
                a_released_or_expired_partition_is_unowned,
                a_live_owner_is_displaced_and_gets_it_back,
                every_record_of_an_operator_names_it,
                keeps_the_measured_load,
                an_owner_with_a_heartbeat_is_not_declared_dead,
                an_expired_heartbeat_is_declared_dead_first,
                an_owner_faster_than_the_declaration_is_alive,
                a_valid_reservation_is_kept,
                after_a_reset_it_returns_to_the_same_owner,
                a_requested_partition_goes_to_the_requester,
                another_live_operator_means_busy,
                after_a_dead_operator_inherits_its_owner,
                again_by_the_same_operator_inherits_it,
                with_a_foreign_owner_is_rejected,
                with_a_foreign_owner_waits_and_renews,
                after_a_foreign_owner_waits_too,
                waits_again_after_a_foreign_checkpoint,
                a_partition_taken_by_a_foreign_owner_is_lost,
                without_a_checkpoint_creates_the_first,
                to_the_current_position_writes_nevertheless,
                is_not_undone_by_an_earlier_checkpoint,
                moves_a_checkpoint_anywhere,
                keeps_every_other_key,
                of_several_partitions_reports_each,
                of_one_partition_twice_at_once_is_rejected,
            }
            reset_faults {
                one_fault_at_each_request,
                one_fault_at_a_first_checkpoint,
                a_disconnected_operator_reports_the_truth,
                an_overtaken_operator_reports_the_truth,
                an_ambiguous_write_before_a_loss_is_reported,
                the_next_adoption_decides_an_ambiguous_write,
                a_renewed_record_is_read_again,
                a_partition_released_meanwhile_is_reset,
                two_operators_at_once_report_the_truth,
                two_overlapping_operators_report_the_truth,
                a_crashed_operator_leaves_a_partition_to_claim,
            }
            name_case {
                an_empty_group_is_lower_for_all,
                auto_finds_the_records,
                live_owners_in_the_other_case_are_refused,
                live_owners_in_both_cases_are_refused,
                a_reader_looks_at_any_case,
                without_capitals_nothing_is_looked_up,
                an_owner_that_came_meanwhile_ends_the_loop,
                the_first_win_lists_the_other_case_once,
                nothing_there_is_read_afterwards,
            }
            sources {
                the_list_has_owner_position_date_and_etag,
                of_two_claims_at_once_one_wins,
                of_twenty_claims_at_once_one_wins,
                only_the_owner_updates_the_checkpoint,
                success_refreshes_last_modified,
                a_failed_update_rereads_then_stops_or_retries,
                a_clock_minutes_ahead_expires_no_owner,
                list_for_hub_and_group,
                a_claimed_list_reports_which_succeeded,
                update_checkpoint_returns_the_new_etag,
                a_claim_fails_if_the_record_exists,
                abandoned_locks_are_overridden_by_age,
            }
            tolerance {
                an_ownership_without_any_metadata,
                an_ownership_with_other_keys_and_no_ownerid,
                an_ownership_with_an_empty_ownerid_is_released,
                an_ownership_with_other_empty_values,
                an_ownership_of_an_owner_with_an_unusual_name,
                an_ownership_with_keys_of_another_case,
                an_ownership_with_extra_keys,
                an_ownership_at_a_wrong_depth,
                an_ownership_with_a_zero_length_name,
                an_ownership_whose_last_segment_is_empty,
                foreign_blobs_next_to_the_records,
                a_partition_that_is_not_a_number,
                a_checkpoint_without_any_metadata,
                a_checkpoint_with_empty_values,
                a_checkpoint_with_an_empty_offset,
                a_checkpoint_without_an_offset,
                a_checkpoint_whose_offset_is_no_offset,
                a_checkpoint_whose_offset_is_none,
                a_checkpoint_with_an_empty_sequencenumber,
                a_checkpoint_without_a_sequencenumber,
                a_checkpoint_whose_sequencenumber_is_none,
                a_checkpoint_with_text_for_a_number,
                a_checkpoint_with_the_smallest_number,
                a_checkpoint_with_text_for_an_offset_is_valid,
                a_checkpoint_with_keys_of_another_case,
                a_checkpoint_with_extra_keys,
                a_checkpoint_at_a_wrong_depth,
                a_checkpoint_with_a_zero_length_name,
                many_bad_blobs_are_all_reported,
            }
        }
    };
}

mod memory {
    use crate::bench::Bench;

    tests!(Bench::in_memory(), start_paused = true);
}

mod azurite {
    use crate::bench::Bench;

    tests!(Bench::in_azurite().await, start_paused = false);
}
