//! Runs `ehcp serve`.

use std::time::Duration;

use reqwest::header::HOST;
use reqwest::{Client, Response, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr};
use tokio::time::{Instant, sleep, timeout};

use crate::fleet::TIMEOUT;
use crate::program::Program;

/// The time between two looks.
pub const INTERVAL: &str = "250ms";

/// A running server.
pub struct Server {
    pub url: String,
    /// What it wrote before it listened.
    pub notes: Vec<String>,
    child: Child,
    /// Open until the end: the program may write more.
    _stderr: Lines<BufReader<ChildStderr>>,
}

impl Server {
    /// Starts it on any free port of this machine, with further options.
    pub async fn start(program: &Program, options: &[&str]) -> Self {
        Self::start_on("127.0.0.1:0", program, options).await
    }

    pub async fn start_on(address: &str, program: &Program, options: &[&str]) -> Self {
        let looks = ["--interval", INTERVAL, "--refresh", INTERVAL, "--hub-interval", "500ms"];
        let common = [&["serve", "--listen", address], &looks[..]].concat();
        let mut child = program.spawn(&[&common, options].concat());
        let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut notes = Vec::new();
        let listening = async {
            loop {
                let line = stderr.next_line().await.unwrap().unwrap_or_else(|| panic!("it does not listen: {notes:?}"));
                if let Some(url) = line.strip_prefix("listening on ") {
                    return url.to_owned();
                }
                notes.push(line);
            }
        };
        let url = timeout(TIMEOUT, listening).await.unwrap();
        Self { url, notes, child, _stderr: stderr }
    }

    pub async fn get(&self, path: &str) -> Response {
        Client::new().get(self.of(path)).send().await.unwrap()
    }

    pub async fn get_as(&self, host: &str, path: &str) -> StatusCode {
        Client::new().get(self.of(path)).header(HOST, host).send().await.unwrap().status()
    }

    pub async fn text(&self, path: &str) -> String {
        self.get(path).await.text().await.unwrap()
    }

    pub async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path).await).unwrap()
    }

    pub fn of(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Waits until a text fulfills a condition, and returns it.
    pub async fn wait_for(&self, path: &str, condition: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let text = self.text(path).await;
            if condition(&text) {
                return text;
            }
            assert!(started.elapsed() < TIMEOUT, "{path}: {text}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends it with a signal, and returns its exit code.
    pub async fn stop(mut self) -> Option<i32> {
        let id = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id.try_into().unwrap()));
        rustix::process::kill_process(id.unwrap(), rustix::process::Signal::TERM).unwrap();
        timeout(TIMEOUT, self.child.wait()).await.expect("it does not end").unwrap().code()
    }
}
