//! Drives a headless Chromium through the DevTools protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::fleet::TIMEOUT;

/// The programs to look for, in this order.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

const FLAGS: [&str; 10] = [
    "--headless=new",
    // The page is ours, and containers do not permit the sandbox.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
    "about:blank",
];

/// The time between two looks at a condition.
const POLL: Duration = Duration::from_millis(50);

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// What the browser has sent.
#[derive(Clone, Default)]
struct Received {
    /// Where its responses are awaited.
    responses: Arc<Mutex<BTreeMap<u64, oneshot::Sender<Value>>>>,
    /// The loaders of the documents that are loaded.
    loaded: Arc<Mutex<BTreeSet<String>>>,
    problems: Arc<Mutex<Vec<String>>>,
}

/// A browser with one page.
pub struct Browser {
    commands: mpsc::UnboundedSender<Value>,
    received: Received,
    next: u64,
    _child: Child,
    _stderr: Lines<BufReader<ChildStderr>>,
    /// Deleted after the end of the browser.
    _profile: TempDir,
}

impl Browser {
    /// Returns a browser, or nothing if this machine has none.
    pub async fn start() -> Option<Self> {
        let Some(program) = find() else {
            // Shown although the test passes.
            let _ = writeln!(std::io::stderr(), "the page is not tested: this machine has no Chromium");
            return None;
        };
        let profile = TempDir::new().unwrap();
        let mut command = Command::new(program);
        command.arg(format!("--user-data-dir={}", profile.path().display())).args(FLAGS);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        let endpoint = timeout(TIMEOUT, endpoint(&mut stderr)).await.expect("the browser does not start");
        let (socket, _) = connect_async(page_of(&endpoint).await).await.unwrap();
        let received = Received::default();
        let (commands, orders) = mpsc::unbounded_channel();
        tokio::spawn(converse(socket, orders, received.clone()));
        let mut browser = Self { commands, received, next: 0, _child: child, _stderr: stderr, _profile: profile };
        for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
            browser.call(domain, json!({})).await;
        }
        browser.call("Page.setLifecycleEventsEnabled", json!({ "enabled": true })).await;
        Some(browser)
    }

    /// Opens a page, and waits until it is loaded: before that, an expression may still be evaluated in the page
    /// before.
    pub async fn open(&mut self, url: &str) {
        let answer = self.call("Page.navigate", json!({ "url": url })).await;
        let (loader, started) = (answer["loaderId"].as_str().unwrap(), Instant::now());
        while !self.received.loaded.lock().unwrap().contains(loader) {
            assert!(started.elapsed() < TIMEOUT, "{url} is not loaded: {:?}", self.problems());
            sleep(POLL).await;
        }
    }

    /// Sets the width of the window, and whether the user prefers dark colors.
    pub async fn emulate(&mut self, width: u32, is_dark: bool) {
        let metrics = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", features).await;
    }

    /// Returns the value of an expression in the page.
    pub async fn value(&mut self, expression: &str) -> Value {
        let answer = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true })).await;
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression in the page is true.
    pub async fn wait_for(&mut self, expression: &str) {
        let started = Instant::now();
        while self.value(expression).await != true {
            if started.elapsed() > TIMEOUT {
                let text = self.value("document.body.innerText").await;
                panic!("never true: {expression}; {:?}; the page: {text}", self.problems());
            }
            sleep(POLL).await;
        }
    }

    /// Returns the page as a PNG.
    pub async fn screenshot(&mut self) -> Vec<u8> {
        let answer = self.call("Page.captureScreenshot", json!({ "format": "png" })).await;
        STANDARD.decode(answer["data"].as_str().unwrap()).unwrap()
    }

    /// Returns the errors and warnings of the console, violations of the policy included.
    pub fn problems(&self) -> Vec<String> {
        self.received.problems.lock().unwrap().clone()
    }

    async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let (answer, answered) = oneshot::channel();
        self.received.responses.lock().unwrap().insert(self.next, answer);
        self.commands.send(json!({ "id": self.next, "method": method, "params": parameters })).unwrap();
        let answer = timeout(TIMEOUT, answered).await.unwrap_or_else(|_| panic!("no answer to {method}")).unwrap();
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }
}

fn find() -> Option<PathBuf> {
    let folders: Vec<_> = env::split_paths(&env::var_os("PATH")?).collect();
    let candidates = NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    candidates.into_iter().find(|candidate| candidate.is_file())
}

/// The browser writes where it listens.
async fn endpoint(stderr: &mut Lines<BufReader<ChildStderr>>) -> String {
    loop {
        let line = stderr.next_line().await.unwrap().expect("the browser has ended");
        if let Some(endpoint) = line.strip_prefix("DevTools listening on ws://") {
            return endpoint.split('/').next().unwrap().to_owned();
        }
    }
}

async fn page_of(endpoint: &str) -> String {
    let started = Instant::now();
    loop {
        let targets = reqwest::get(format!("http://{endpoint}/json/list")).await.unwrap().text().await.unwrap();
        let targets: Vec<Value> = serde_json::from_str(&targets).unwrap();
        if let Some(page) = targets.iter().find(|target| target["type"] == "page") {
            return page["webSocketDebuggerUrl"].as_str().unwrap().to_owned();
        }
        assert!(started.elapsed() < TIMEOUT, "the browser has no page: {targets:?}");
        sleep(POLL).await;
    }
}

/// Sends commands, and receives responses and events, until the browser ends.
async fn converse(mut socket: Socket, mut commands: mpsc::UnboundedReceiver<Value>, received: Received) {
    loop {
        tokio::select! {
            command = commands.recv() => {
                let Some(command) = command else { return };
                socket.send(Message::text(command.to_string())).await.unwrap();
            }
            message = socket.next() => {
                let Some(Ok(message)) = message else { return };
                let Ok(message) = serde_json::from_str::<Value>(message.to_text().unwrap_or_default()) else { continue };
                received.add(message);
            }
        }
    }
}

impl Received {
    fn add(&self, message: Value) {
        let parameters = &message["params"];
        if let Some(answer) = message["id"].as_u64().and_then(|id| self.responses.lock().unwrap().remove(&id)) {
            // A test that failed no longer waits.
            let _ = answer.send(message);
        } else if message["method"] == "Page.lifecycleEvent" && parameters["name"] == "load" {
            self.loaded.lock().unwrap().extend(parameters["loaderId"].as_str().map(str::to_owned));
        } else if is_problem(&message) {
            self.problems.lock().unwrap().push(parameters.to_string());
        }
    }
}

fn is_problem(message: &Value) -> bool {
    let parameters = &message["params"];
    match message["method"].as_str() {
        Some("Runtime.exceptionThrown") => true,
        Some("Runtime.consoleAPICalled") => {
            ["error", "warning", "assert"].iter().any(|kind| parameters["type"] == *kind)
        }
        // The tests read canvases, which the browser finds slow.
        Some("Log.entryAdded") if parameters["entry"]["source"] == "rendering" => false,
        Some("Log.entryAdded") => ["error", "warning"].iter().any(|level| parameters["entry"]["level"] == *level),
        _ => false,
    }
}
