//! The terminal: prepared for the screen, and restored whatever happens.

use std::io;

use ratatui::DefaultTerminal;

use super::draw::draw;
use super::state::{Drawn, State};

/// A terminal that shows the screen. Dropping it restores what was there before; so does a panic.
pub struct Screen(DefaultTerminal);

impl Screen {
    pub fn enter(colors: bool) -> io::Result<Self> {
        // `--color always` counts more than NO_COLOR, which the terminal library reads.
        crossterm::style::force_color_output(colors);
        match ratatui::try_init() {
            Ok(terminal) => Ok(Self(terminal)),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    /// Draws the state, and returns how much that was.
    pub fn draw(&mut self, state: &State) -> io::Result<Drawn> {
        let mut drawn = Drawn::default();
        self.0.draw(|frame| drawn = draw(frame, state))?;
        Ok(drawn)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// A terminal that is gone needs no restoring.
fn restore() {
    let _ = ratatui::try_restore();
}
