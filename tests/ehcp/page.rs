//! The page of `ehcp serve` in a real browser.

use crate::browser::Browser;
use crate::fleet::Fleet;
use crate::program::Program;
use crate::server::Server;

/// Functions for the expressions below.
const TOOLS: &str = r"
window.probe = {};
probe.rows = () => [...document.querySelectorAll('#partitions tr')];
probe.owners = () => probe.rows().map((row) => row.dataset.owner);
probe.lag = () => Number(document.getElementById('lag').textContent.replaceAll(',', ''));
// The color of the strip of partition 0 at a part of its width.
probe.paint = (part) => {
  const canvas = document.querySelector('#partitions tr[data-partition=\'0\'] canvas');
  const at = Math.round((canvas.width - 2) * part);
  return [...canvas.getContext('2d').getImageData(at, canvas.height / 2, 1, 1).data].join();
};
probe.colors = () => {
  const canvas = document.querySelector('#partitions tr[data-partition=\'0\'] canvas');
  const data = canvas.getContext('2d').getImageData(0, 2, canvas.width, 1).data, seen = new Set();
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) seen.add(data.slice(at, at + 4).join());
  return [...seen];
};
";

async fn text(browser: &mut Browser, id: &str) -> String {
    let text = browser.value(&format!("document.getElementById('{id}').textContent")).await;
    text.as_str().unwrap().to_owned()
}

async fn lag(browser: &mut Browser) -> f64 {
    browser.value("probe.lag()").await.as_f64().unwrap()
}

/// Two owners, of which one is killed; then the other one, so that the lag grows; then a third one catches up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_a_takeover_and_the_lag() {
    let Some(mut browser) = Browser::start().await else { return };
    let fleet = Fleet::new(4).await;
    let (a, b) = (fleet.own("a").await, fleet.own("b").await);
    fleet.shared_among(&["a", "b"]).await;
    // It keeps the files that the server reads.
    let program = Program::for_fleet(&fleet).await;
    let server = Server::start(&program, &[]).await;
    browser.emulate(1280, false).await;
    browser.open(&server.url).await;
    browser.value(TOOLS).await;
    browser.wait_for("probe.rows().length === 4 && probe.owners().every((owner) => ['a', 'b'].includes(owner))").await;
    browser.wait_for("document.getElementById('state').textContent === 'stable'").await;
    assert_eq!(text(&mut browser, "owned").await, "4 / 4");

    let first = browser.value("probe.owners()[0]").await;
    let (killed, survivor, other) = if first == "a" { (a, b, "b") } else { (b, a, "a") };
    browser.wait_for("(probe.before = probe.paint(1)).endsWith(',255')").await;
    let before = browser.value("probe.before").await;
    killed.kill().await;
    browser.wait_for("document.querySelector('#feed').textContent.includes(' took ')").await;
    browser.wait_for(&format!("probe.owners().every((owner) => owner === '{other}')")).await;
    browser.wait_for(&format!("probe.paint(1).endsWith(',255') && probe.paint(1) !== {before}")).await;
    let colors = browser.value("probe.colors()").await;
    assert!(colors.as_array().unwrap().contains(&before), "the earlier owner is still shown: {colors}");

    survivor.kill().await;
    let some = lag(&mut browser).await;
    browser.wait_for(&format!("probe.lag() > {}", some + 300.0)).await;
    browser.wait_for("document.querySelectorAll('#partitions tr[data-state=expired]').length === 4").await;
    assert_eq!(text(&mut browser, "owned-note").await, "4 without an owner");
    let most = lag(&mut browser).await;
    let c = fleet.own("c").await;
    browser.wait_for(&format!("probe.lag() < {}", most / 2.0)).await;
    browser.wait_for("probe.owners().every((owner) => owner === 'c')").await;

    looks_right(&mut browser).await;
    assert_eq!(browser.problems(), [""; 0]);
    server.stop().await;
    browser.wait_for("document.getElementById('banners').textContent.includes('connection to ehcp is lost')").await;
    c.shut_down().await;
}

/// Light and dark differ, and nothing is wider than a phone.
async fn looks_right(browser: &mut Browser) {
    let background = "getComputedStyle(document.body).backgroundColor";
    let light = browser.value(background).await;
    browser.emulate(1280, true).await;
    browser.wait_for(&format!("{background} !== {light}")).await;
    browser.value("document.getElementById('theme').click()").await;
    assert_eq!(browser.value(background).await, light);
    browser.value("document.getElementById('theme').click()").await;
    // Each is narrower than the one before, so that nothing holds before the page has the new width.
    for width in [1000, 700, 400, 320] {
        browser.emulate(width, true).await;
        browser.wait_for(&format!("document.documentElement.scrollWidth <= {width}")).await;
    }
    browser.emulate(1000, true).await;
    browser.wait_for("probe.rows()[0].querySelector('canvas').clientWidth > 200").await;
    assert!(!browser.screenshot().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_a_pause_and_its_reason() {
    let Some(mut browser) = Browser::start().await else { return };
    let mut fleet = Fleet::with_batches(2, 8).await;
    fleet.all_published().await;
    let processor = fleet.own("a").await;
    fleet.all_processed().await;
    let program = Program::for_fleet(&fleet).await;
    let server = Server::start(&program, &[]).await;
    browser.open(&server.url).await;
    let state = r##"document.querySelector("#partitions tr[data-partition='1'] .pill")?.textContent"##;
    browser.wait_for(&format!("{state} === 'owned'")).await;
    let pause = ["pause", "-p", "1", "--for", "2h", "--reason", "<b>a migration</b>", "--live", "--execute"];
    program.run(&pause).await.ended(0);
    browser.wait_for(&format!("{state} === 'paused'")).await;
    let banner = text(&mut browser, "banners").await;
    assert!(banner.starts_with("Partition 1 is paused until "), "{banner}");
    assert!(banner.ends_with(": <b>a migration</b>"), "{banner}");
    browser.wait_for("document.querySelector('#feed').textContent.includes('partition 1 paused until ')").await;
    assert_eq!(text(&mut browser, "owned-note").await, "all have an owner, 1 paused");
    program.run(&["resume", "--live", "--execute"]).await.ended(0);
    browser.wait_for(&format!("{state} === 'owned' && !document.getElementById('banners').textContent")).await;
    browser.wait_for("document.querySelector('#feed').textContent.includes('partition 1 resumed')").await;
    assert_eq!(browser.problems(), [""; 0]);
    processor.shut_down().await;
}

/// Ids come from other programs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_ids_as_text() {
    let Some(mut browser) = Browser::start().await else { return };
    let fleet = Fleet::new(1).await;
    let id = "<img src=x onerror=alert(1)>";
    let processor = fleet.own(id).await;
    // It keeps the files that the server reads.
    let program = Program::for_fleet(&fleet).await;
    let server = Server::start(&program, &[]).await;
    browser.open(&server.url).await;
    browser.value(TOOLS).await;
    browser.wait_for(&format!("probe.rows().length === 1 && probe.owners()[0] === '{id}'")).await;
    assert_eq!(browser.value("document.querySelectorAll('img').length").await, 0);
    let shown = browser.value("document.querySelector('#owners .name').textContent").await;
    assert_eq!(shown, id);
    assert_eq!(browser.problems(), [""; 0]);
    processor.shut_down().await;
}
