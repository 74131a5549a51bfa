//! The screen of `ehcp watch`. It only reads the group.

mod columns;
mod condition;
mod detail;
mod draw;
mod events;
mod figures;
mod headline;
mod keys;
mod pages;
mod row;
mod state;
mod terminal;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crossterm::event::{Event, EventStream};
use eventhubs_checkpoint::admin::describe::GroupDescription;
use eventhubs_checkpoint::store::NameCase;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, Stream, StreamExt};
use tokio::sync::Notify;
use tokio::time::{Instant, interval};

use self::keys::KeyEffect;
use self::state::{ScreenSettings, ScreenState};
use self::terminal::Screen;
use crate::args::WatchArgs;
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result};
use crate::output::has_colored_screen;
use crate::safety::{save_checkpoints, wait_for_stop_signal};
use crate::watching::{CountedLook, Watcher};

/// How often ages and remaining times are shown again.
const TICK: Duration = Duration::from_secs(1);

/// Shows the group until a key or a signal ends it, or after a number of looks.
pub async fn run(connection: GroupConnection, watch: &WatchArgs) -> Result<Exit> {
    if connection.global.verbose > 0 && io::stderr().is_terminal() {
        return Err(Failure::usage(
            "the log and the screen need the same terminal: redirect the log, as in 2> log.txt",
        ));
    }
    let global = &connection.global;
    let settings = ScreenSettings {
        colors: has_colored_screen(global.color),
        intervals: watch.looks,
        has_hub: !global.no_hub,
        given: global.given.clone(),
    };
    let side = GroupConnection::resolve(global)?;
    let wanted = Arc::new(Notify::new());
    let looks = Watcher::connect(connection, watch.looks.hub_interval)
        .await?
        .looks(watch.looks, wanted.clone())
        .take(watch.count.map_or(usize::MAX, NonZeroUsize::get));
    let mut screen = Screen::enter(settings.colors)?;
    RunningScreen { state: ScreenState::new(settings), side: &side, others: FuturesUnordered::new(), wanted }
        .run(&mut screen, looks)
        .await?;
    Ok(Exit::Done)
}

/// What is shown, and what it still waits for.
struct RunningScreen<'a> {
    state: ScreenState,
    /// For what the looks do not read.
    side: &'a GroupConnection,
    /// The records under names in the other blob-name casing, once they are wanted.
    others: FuturesUnordered<BoxFuture<'a, Result<GroupDescription>>>,
    /// Notified of each key: a user who looks at the screen wants to see the group as it is now.
    wanted: Arc<Notify>,
}

impl RunningScreen<'_> {
    async fn run(mut self, screen: &mut Screen, looks: impl Stream<Item = CountedLook>) -> Result<()> {
        let mut looks = pin!(looks);
        let mut events = EventStream::new();
        let mut stop = pin!(wait_for_stop_signal());
        let mut ticks = interval(TICK);
        let mut looked_at = Instant::now();
        loop {
            self.state.on_drawn(screen.draw(&self.state)?);
            tokio::select! {
                // What the user and the system want comes first.
                biased;
                () = &mut stop => return Ok(()),
                event = events.next() => match event {
                    Some(event) => if !self.on_event(&event?) {
                        return Ok(());
                    },
                    None => return Ok(()),
                },
                seen = looks.next() => match seen {
                    Some(seen) => {
                        // A look that failed leaves the age of the last one as it is.
                        looked_at = if seen.look.is_ok() { Instant::now() } else { looked_at };
                        self.state.on_look(seen);
                    }
                    None => return Ok(()),
                },
                Some(other) = self.others.next() => self.state.on_other_name_case(other),
                _ = ticks.tick() => {}
            }
            self.state.on_time(looked_at.elapsed());
        }
    }

    /// Returns whether to continue.
    fn on_event(&mut self, event: &Event) -> bool {
        // Any other event, such as a new size, only draws again.
        let Event::Key(key) = event else { return true };
        self.wanted.notify_one();
        match self.state.on_key(*key) {
            KeyEffect::None => {}
            KeyEffect::Quit => return false,
            KeyEffect::Export => {
                let saved = self.state.group().map(|group| save_checkpoints(group, Path::new(".")));
                self.state.on_export(saved.unwrap_or_else(|| Err(Failure::failed("nothing was read yet"))));
            }
            KeyEffect::ReadOtherNameCase(case) => self.others.push(read_name_case(self.side, case).boxed()),
        }
        true
    }
}

/// Reads the records under names in this blob-name casing.
async fn read_name_case(connection: &GroupConnection, case: NameCase) -> Result<GroupDescription> {
    Ok(connection.connect_reader_of(case).await?.read().await?.describe(None))
}
