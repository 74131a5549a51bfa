//! `ehcp watch` on a pseudoterminal.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use tokio::process::Child;
use tokio::time::{Instant, sleep, timeout};

use crate::fleet::{Fleet, TIMEOUT};
use crate::program::Program;
use crate::relay::Relay;

const ENTER_SCREEN: &str = "\u{1b}[?1049h";
const LEAVE_SCREEN: &str = "\u{1b}[?1049l";
/// How colored text begins.
const COLOR: &str = "\u{1b}[38;5;";

/// The program on a pseudoterminal.
struct Screen {
    terminal: File,
    /// The side of the program. It stays open, so that its settings can be read when the program has ended.
    line: File,
    before: Termios,
    shown: Arc<Mutex<Vec<u8>>>,
    running: Child,
}

impl Screen {
    fn start(program: &Program, arguments: &[&str]) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let path = Path::new(OsStr::from_bytes(name.as_bytes()));
        let line = OpenOptions::new().read(true).write(true).open(path).unwrap();
        resize(&line, 60, 24);
        let before = tcgetattr(&line).unwrap();
        let mut command = program.command(arguments);
        let end = || line.try_clone().unwrap();
        let running = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let terminal = File::from(terminal);
        let (mut reader, shown) = (terminal.try_clone().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let read = shown.clone();
        // It ends when the last end of the line is closed.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                read.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Self { terminal, line, before, shown, running }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    async fn until_shows(&self, text: &str) {
        let started = Instant::now();
        while !self.shown().contains(text) {
            assert!(started.elapsed() < TIMEOUT, "{text:?} is not shown: {:?}", self.shown());
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.terminal.write_all(keys).unwrap();
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.running.id().unwrap()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }

    /// Waits for the end of the program, which must have restored the terminal.
    async fn ended(mut self, code: i32) -> String {
        let ended =
            timeout(TIMEOUT, self.running.wait()).await.unwrap_or_else(|_| panic!("{:?}", self.shown())).unwrap();
        self.until_shows(LEAVE_SCREEN).await;
        let shown = self.shown();
        assert_eq!(ended.code(), Some(code), "{shown:?}");
        assert!(shown.find(ENTER_SCREEN).unwrap() < shown.rfind(LEAVE_SCREEN).unwrap(), "{shown:?}");
        let after = tcgetattr(&self.line).unwrap();
        assert_eq!(after.local_modes, self.before.local_modes);
        assert_eq!(after.input_modes, self.before.input_modes);
        assert_eq!(after.output_modes, self.before.output_modes);
        shown
    }
}

fn resize(line: &File, columns: u16, rows: u16) {
    tcsetwinsize(line, Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

/// Partitions without an owner, whose rows are colored.
async fn program() -> (Fleet, Program) {
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let program = Program::for_fleet(&fleet).await;
    program.run(&["init", "--to-earliest", "--execute"]).await.ended(0);
    (fleet, program)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_screen_follows_keys_and_sizes() {
    let (_fleet, program) = program().await;
    let mut screen = Screen::start(&program, &["watch", "--interval", "200ms", "--refresh", "200ms"]);
    screen.until_shows("UNOWNED").await;
    assert!(!screen.shown().contains("SEQUENCE"), "the column does not fit");
    resize(&screen.line, 160, 24);
    screen.signal(Signal::WINCH);
    screen.until_shows("SEQUENCE").await;
    screen.press(b"e");
    screen.until_shows("wrote the checkpoints").await;
    screen.press(b"?");
    screen.until_shows("list requests").await;
    screen.press(b"\x1br");
    screen.press(b"q");
    assert!(screen.ended(0).await.contains(COLOR));
    assert_eq!(program.backups().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signals_restore_the_terminal() {
    let (_fleet, mut program) = program().await;
    program.set("NO_COLOR", "1");
    for signal in [Signal::TERM, Signal::INT] {
        let screen = Screen::start(&program, &["watch", "--no-hub"]);
        screen.until_shows("UNOWNED").await;
        screen.signal(signal);
        assert!(!screen.ended(0).await.contains(COLOR));
    }
    let mut screen = Screen::start(&program, &["watch", "--color", "always"]);
    screen.until_shows("UNOWNED").await;
    // Ctrl-C as the terminal sends it.
    screen.press(b"\x03");
    assert!(screen.ended(0).await.contains(COLOR));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_look_stays_if_the_storage_fails() {
    let (_fleet, mut program) = program().await;
    let relay = Relay::start().await;
    program.set("AZURE_STORAGE_CONNECTION_STRING", &relay.connection_string);
    let mut screen = Screen::start(&program, &["watch", "--refresh", "200ms", "--interval", "200ms", "--no-hub"]);
    screen.until_shows("UNOWNED").await;
    drop(relay);
    screen.until_shows("because the storage failed").await;
    screen.press(b"q");
    screen.ended(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_screen_ends_after_a_number_of_looks() {
    let (_fleet, program) = program().await;
    let screen = Screen::start(&program, &["watch", "--count", "2", "--interval", "100ms", "--refresh", "100ms"]);
    screen.ended(0).await;
    let before = Screen::start(&program, &["watch", "-c", "absent"]);
    let started = Instant::now();
    while !before.shown().contains("check --container") {
        assert!(started.elapsed() < TIMEOUT, "{:?}", before.shown());
        sleep(Duration::from_millis(20)).await;
    }
    let mut logged = Screen::start(&program, &["watch", "-v"]);
    assert_eq!(timeout(TIMEOUT, logged.running.wait()).await.unwrap().unwrap().code(), Some(64));
    assert!(!before.shown().contains(ENTER_SCREEN), "an error at the start is shown on the normal screen");
}
