//! What the keys change.

use std::path::PathBuf;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::store::NameCase;

use super::super::keys::KeyEffect;
use super::super::pages::reset_lines;
use super::super::state::{DrawnSize, RowOrder, ScreenState, ScreenView};
use super::sample::{look, many, settings, state};

/// A key that is pressed. A line break is the enter key.
pub trait Key {
    fn code(self) -> KeyCode;
}

impl Key for KeyCode {
    fn code(self) -> KeyCode {
        self
    }
}

impl Key for char {
    fn code(self) -> KeyCode {
        if self == '\n' { KeyCode::Enter } else { KeyCode::Char(self) }
    }
}

pub fn press(state: &mut ScreenState, key: impl Key) -> KeyEffect {
    state.on_key(KeyEvent::new(key.code(), KeyModifiers::NONE))
}

/// Presses the keys of a text.
pub fn type_keys(state: &mut ScreenState, text: &str) {
    for key in text.chars() {
        press(state, key);
    }
}

fn ids(state: &ScreenState) -> Vec<String> {
    state.rows().iter().map(|row| row.partition.id.to_string()).collect()
}

fn selected(state: &ScreenState) -> String {
    state.selected_partition().map(|id| id.to_string()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn the_screen_is_left() {
    let mut state = state().await;
    assert_eq!(press(&mut state, 'q'), KeyEffect::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.on_key(interrupt), KeyEffect::Quit);
    press(&mut state, '/');
    assert_eq!(press(&mut state, 'q'), KeyEffect::None, "a letter of the filter");
    assert_eq!(state.on_key(interrupt), KeyEffect::Quit);
    let released = KeyEvent { kind: KeyEventKind::Release, ..KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE) };
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.on_key(released), KeyEffect::None);
}

#[tokio::test(start_paused = true)]
async fn the_order_changes_in_turn() {
    let mut state = state().await;
    for (sort, expected) in [
        (RowOrder::Lag, ["1", "0", "2", "3"]),
        (RowOrder::Rate, ["0", "1", "2", "3"]),
        (RowOrder::Updated, ["3", "2", "0", "1"]),
        (RowOrder::Partition, ["0", "1", "2", "3"]),
    ] {
        press(&mut state, 's');
        assert_eq!((state.sort, ids(&state)), (sort, expected.map(str::to_owned).to_vec()));
    }
}

#[tokio::test(start_paused = true)]
async fn the_selected_partition_stays_selected() {
    let mut state = state().await;
    press(&mut state, 'j');
    assert_eq!(selected(&state), "1");
    press(&mut state, 's');
    assert_eq!(selected(&state), "1", "at another place");
    press(&mut state, KeyCode::Down);
    assert_eq!(selected(&state), "0");
    type_keys(&mut state, "/released\n");
    assert_eq!(selected(&state), "3", "the first one, because the filter hides 0");
    press(&mut state, KeyCode::Esc);
    assert_eq!(selected(&state), "0");
}

#[tokio::test(start_paused = true)]
async fn the_selection_stays_within_the_rows() {
    let mut state = many(30).await;
    state.on_drawn(DrawnSize { page: 10, lines: 0 });
    for (key, expected) in [
        (KeyCode::Up, "0"),
        (KeyCode::PageDown, "10"),
        (KeyCode::Char(' '), "20"),
        (KeyCode::PageDown, "29"),
        (KeyCode::Down, "29"),
        (KeyCode::PageUp, "19"),
        (KeyCode::Home, "0"),
        (KeyCode::End, "29"),
        (KeyCode::Char('k'), "28"),
    ] {
        press(&mut state, key);
        assert_eq!(selected(&state), expected, "{key:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_filter_finds_partitions_owners_and_states() {
    let mut state = state().await;
    for (filter, expected) in
        [("X2", vec!["0", "1"]), ("renewal late", vec!["2"]), ("RELEASED", vec!["3"]), ("absent", vec![])]
    {
        press(&mut state, '/');
        type_keys(&mut state, filter);
        assert_eq!(ids(&state), expected, "{filter}");
        press(&mut state, KeyCode::Backspace);
        assert_eq!(state.filter.len(), filter.len() - 1);
        press(&mut state, KeyCode::Esc);
        assert_eq!((state.filter.as_str(), state.is_typing), ("", false));
    }
}

#[tokio::test(start_paused = true)]
async fn a_partition_is_opened_and_closed() {
    let mut state = state().await;
    press(&mut state, 'j');
    for back in [KeyCode::Esc, KeyCode::Enter, KeyCode::Backspace] {
        assert_eq!(press(&mut state, KeyCode::Enter), KeyEffect::None);
        assert_eq!(state.view, ScreenView::Partition(PartitionId::from(1)));
        press(&mut state, back);
        assert_eq!(state.view, ScreenView::Partitions);
    }
    press(&mut state, KeyCode::Enter);
    press(&mut state, 'r');
    assert_eq!(state.view, ScreenView::Reset(PartitionId::from(1)));
    press(&mut state, '?');
    press(&mut state, 'r');
    assert_eq!(state.view, ScreenView::Help);
    press(&mut state, '?');
    assert_eq!(state.view, ScreenView::Partitions);
}

#[tokio::test(start_paused = true)]
async fn the_other_letter_case_is_read_if_it_is_in_use() {
    let mut state = state().await;
    let mut group = state.group().unwrap().clone();
    group.group.other_name_case = true;
    look(&mut state, group.clone());
    assert_eq!(press(&mut state, KeyCode::Enter), KeyEffect::ReadOtherNameCase(NameCase::Verbatim));
    group.group.blob_name_case = NameCase::Verbatim;
    look(&mut state, group);
    press(&mut state, KeyCode::Esc);
    assert_eq!(press(&mut state, KeyCode::Enter), KeyEffect::ReadOtherNameCase(NameCase::Lower));
}

#[tokio::test(start_paused = true)]
async fn texts_scroll_to_their_end() {
    let mut state = state().await;
    press(&mut state, KeyCode::Enter);
    state.on_drawn(DrawnSize { page: 10, lines: 24 });
    for (key, expected) in [(KeyCode::PageDown, 10), (KeyCode::PageDown, 14), (KeyCode::Up, 13), (KeyCode::Home, 0)] {
        press(&mut state, key);
        assert_eq!(state.scroll, expected, "{key:?}");
    }
    press(&mut state, KeyCode::End);
    state.on_drawn(DrawnSize { page: 20, lines: 24 });
    assert_eq!(state.scroll, 4, "the screen has become larger");
}

#[tokio::test(start_paused = true)]
async fn an_export_is_reported_until_the_next_key() {
    let mut state = state().await;
    assert_eq!(press(&mut state, 'e'), KeyEffect::Export);
    state.on_export(Ok(PathBuf::from("ehcp-orders.json")));
    assert_eq!(state.message(), Some("wrote the checkpoints to ehcp-orders.json"));
    press(&mut state, 'j');
    assert_eq!(state.message(), None);
}

#[test]
fn keys_before_the_first_look_do_nothing() {
    let mut state = ScreenState::new(settings());
    for key in "jk\nrs?? /x".chars() {
        assert_eq!(press(&mut state, key), KeyEffect::None, "{key:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_that_is_refused_is_not_shown() {
    let mut state = state().await;
    let mut group = state.group().unwrap().clone();
    group.partitions[0].checkpoint.as_mut().unwrap().own_position = true;
    look(&mut state, group);
    let shown = [0, 1].map(|id| reset_lines(&state, &id.into()).join("\n"));
    assert!(
        shown[0].contains("keeps its own position of partition 0") && !shown[0].contains("--to-earliest"),
        "{shown:?}"
    );
    assert!(shown[1].contains("ehcp reset -p 1 --to-earliest"), "{shown:?}");
}
