//! The screen, drawn to a terminal in memory.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crossterm::event::KeyCode;
use eventhubs_checkpoint::Pause;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};
use snapbox::Data;

use super::super::draw::draw_screen;
use super::super::state::{OtherNameCase, ScreenState};
use super::keys::{press, type_keys};
use super::sample::{START, look, many, seen, settings, state};
use super::template::template;
use crate::exit::Failure;
use crate::watching::Look;

const PAGE: &str = "docs/ehcp.md";

fn drawn(state: &mut ScreenState, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    // The second time as the first time limits it.
    for _ in 0..2 {
        terminal.draw(|frame| state.on_drawn(draw_screen(frame, state))).unwrap();
    }
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width);
    let lines = buffer.content.chunks(width).map(|cells| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

fn picture(state: &mut ScreenState, width: u16, height: u16) -> String {
    text(&drawn(state, width, height))
}

#[track_caller]
fn compare(name: &str, picture: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("screen/tests/snapshots");
    // Raw: a snapshot may have brackets, which are patterns otherwise.
    snapbox::assert_data_eq!(picture, Data::read_from(&folder.join(format!("{name}.txt")), None).raw());
}

#[tokio::test(start_paused = true)]
async fn a_small_and_a_large_screen() {
    let mut state = state().await;
    compare("80x24", &picture(&mut state, 80, 24));
    compare("140x40", &picture(&mut state, 140, 40));
}

#[tokio::test(start_paused = true)]
async fn a_tiny_screen_does_not_fail() {
    let mut state = many(5).await;
    let mut empty = ScreenState::new(settings());
    for (width, height) in [(1, 1), (2, 3), (20, 5), (400, 2), (3, 200)] {
        for view in ["", "\n", "?", "r", "/"] {
            type_keys(&mut state, view);
            drawn(&mut state, width, height);
            drawn(&mut empty, width, height);
            press(&mut state, KeyCode::Esc);
            press(&mut state, KeyCode::Esc);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn many_partitions_scroll() {
    let mut state = many(200).await;
    compare("many", &picture(&mut state, 100, 20));
    for _ in 0..4 {
        press(&mut state, KeyCode::PageDown);
    }
    compare("many-scrolled", &picture(&mut state, 100, 20));
    press(&mut state, KeyCode::End);
    let last = picture(&mut state, 100, 20);
    assert!(last.contains("\n 199 ") && last.contains(" of 200"), "{last}");
}

#[tokio::test(start_paused = true)]
async fn a_filter_is_shown_while_it_is_typed() {
    let mut state = many(200).await;
    type_keys(&mut state, "/worker-2");
    compare("filter", &picture(&mut state, 100, 12));
    type_keys(&mut state, "xyz");
    let none = picture(&mut state, 100, 12);
    assert!(none.contains("rows 0-0 of 0"), "{none}");
}

#[tokio::test(start_paused = true)]
async fn one_partition_in_detail() {
    let mut state = state().await;
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Enter);
    compare("detail", &picture(&mut state, 100, 30));
    let mut other = template().await;
    other.taken_at = START;
    let id = other.partitions[0].id.clone();
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Home);
    press(&mut state, KeyCode::Enter);
    state.other_name_case = Some(OtherNameCase::Read(other));
    let shown = picture(&mut state, 100, 30);
    assert!(shown.contains(&format!("Partition {id}")), "{shown}");
    assert!(shown.contains("lower names at 10:00:00: owner any, checkpoint 9"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn pauses_are_shown_with_their_reasons() {
    let mut state = state().await;
    let mut group = state.group().unwrap().clone();
    group.taken_at += Duration::from_secs(2);
    let migration = Pause::new(START, Some(START + time::Duration::HOUR), Some("a migration"));
    for (partition, pause) in [(0, &migration), (1, &Pause::after_failure(START, "no database")), (3, &migration)] {
        group.partitions[partition].checkpoint.as_mut().unwrap().paused = Some(pause.clone());
    }
    look(&mut state, group);
    compare("pauses", &picture(&mut state, 140, 20));
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Enter);
    let detail = picture(&mut state, 100, 30);
    assert!(detail.contains("Partition 1, PARKED"), "{detail}");
    assert!(detail.contains("pause          parked since 2026-11-23T10:00:00Z: no database"), "{detail}");
}

#[tokio::test(start_paused = true)]
async fn the_help_has_the_cost() {
    let mut state = state().await;
    press(&mut state, '?');
    compare("help", &picture(&mut state, 110, 33));
}

#[tokio::test(start_paused = true)]
async fn reset_commands_are_only_shown() {
    let mut state = state().await;
    press(&mut state, 'r');
    compare("reset", &picture(&mut state, 100, 16));
}

#[tokio::test(start_paused = true)]
async fn a_failure_leaves_the_last_look() {
    let mut state = state().await;
    let failure = Failure::failed("listing blobs: 503 Server Busy;\u{1b}[2J try again");
    let failed = seen(Err(failure));
    state.on_look(failed);
    state.on_time(Duration::from_secs(14));
    compare("failure", &picture(&mut state, 80, 16));
    let group = state.group().unwrap().clone();
    look(&mut state, group);
    assert!(!picture(&mut state, 80, 16).contains("503"), "a look that succeeds removes it");
    let group = state.group().unwrap().clone();
    let without_hub = seen(Ok(Look {
        group,
        is_hub_read: false,
        hub_failure: Some("the event hub: no connection".to_owned()),
        hub_failures: 1,
        is_hub_stale: false,
    }));
    state.on_look(without_hub);
    let shown = picture(&mut state, 80, 16);
    assert!(shown.contains("LAST and LAG are old or missing: the event hub: no connection"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn before_the_first_look_it_says_so() {
    let mut state = ScreenState::new(settings());
    assert!(picture(&mut state, 80, 10).contains("reading the group"));
    let failed = seen(Err(Failure::failed("403 Forbidden")));
    state.on_look(failed);
    assert!(picture(&mut state, 80, 10).contains("the storage failed: 403 Forbidden"));
}

#[tokio::test(start_paused = true)]
async fn without_colors_there_are_none() {
    let mut state = state().await;
    let colors = |buffer: &Buffer| buffer.content.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
    assert!(colors(&drawn(&mut state, 140, 40)));
    let with = picture(&mut state, 140, 40);
    state.settings.colors = false;
    let plain = drawn(&mut state, 140, 40);
    assert!(!colors(&plain));
    assert_eq!(text(&plain), with);
    let is_marked = plain.content.iter().any(|cell| cell.modifier.contains(Modifier::REVERSED));
    assert!(is_marked, "the selected row");
}

/// The page has the screen after a line `<!-- screen -->`.
#[tokio::test(start_paused = true)]
async fn the_screen_of_the_page_is_true() {
    const MARK: &str = "<!-- screen -->\n```text\n";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(PAGE);
    let page = fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(MARK).expect("the page has a screen");
    let (shown, after) = rest.split_once("```").unwrap();
    let picture = picture(&mut state().await, 128, 10);
    if std::env::var("SNAPSHOTS").is_ok_and(|mode| mode == "overwrite") {
        fs::write(&file, [before, MARK, &picture, "```", after].concat()).unwrap();
    } else {
        assert_eq!(shown, picture);
    }
}
