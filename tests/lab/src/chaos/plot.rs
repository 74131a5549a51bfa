//! Draws the resource usage of the processes over time, as SVG: one panel per measure, one line per instance.

use std::fmt::Write as _;
use std::time::Duration;

use crate::chaos::clock::Moment;
use crate::chaos::event_log::LogEntryKind;
use crate::chaos::incarnation::{IncarnationId, owner};
use crate::chaos::run_data::RunData;
use crate::draw::svg::color;

const LEFT: f64 = 56.0;
const WIDTH: f64 = 820.0;
const RIGHT: f64 = 24.0;
const HEAD: f64 = 40.0;
const PANEL: f64 = 120.0;
const GAP: f64 = 34.0;

const STYLE: &str = "text{font:11px sans-serif;fill:#333}.h{font-weight:bold;font-size:13px}.e{text-anchor:end}\
    .m{text-anchor:middle}.grid{stroke:#000;stroke-opacity:.12}.line{fill:none;stroke-width:1.3}\
    .fault{fill:#c00;fill-opacity:.10}";

/// Values over time of one incarnation.
struct Line {
    incarnation: IncarnationId,
    points: Vec<(Moment, f64)>,
}

struct Panel {
    title: &'static str,
    lines: Vec<Line>,
}

/// Returns the whole document.
pub fn render(run_data: &RunData) -> String {
    let panels = panels(run_data);
    let ends = panels.iter().flat_map(|panel| &panel.lines).filter_map(|line| line.points.last());
    let length = ends.map(|(at, _)| *at).max().unwrap_or_default().max(Duration::from_secs(1));
    let height = HEAD + (PANEL + GAP) * panels.len() as f64;
    let width = LEFT + WIDTH + RIGHT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\">\n\
         <style>{STYLE}</style>\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    legend(&mut svg, run_data);
    for (index, panel) in panels.iter().enumerate() {
        let top = HEAD + (PANEL + GAP) * index as f64;
        faults(&mut svg, run_data, length, top);
        draw(&mut svg, panel, length, top);
    }
    svg.push_str("</svg>\n");
    svg
}

fn panels(run_data: &RunData) -> Vec<Panel> {
    let sampled = |title, value: fn(&crate::chaos::samples::Sample) -> f64| {
        let line = |observed: &crate::chaos::fleet::ObservedIncarnation| Line {
            incarnation: observed.incarnation,
            points: observed.samples.iter().map(|sample| (sample.at, value(sample))).collect(),
        };
        Panel { title, lines: run_data.incarnations.iter().map(line).collect() }
    };
    let tasks = run_data.event_logs.iter().map(|(incarnation, event_log)| {
        let counted = event_log.iter().filter_map(|entry| match entry.kind {
            LogEntryKind::Tasks(count) => Some((entry.moment(), count as f64)),
            _ => None,
        });
        Line { incarnation: *incarnation, points: counted.collect() }
    });
    vec![
        sampled("resident memory, MiB", |sample| sample.memory_kib as f64 / 1024.0),
        sampled("open files", |sample| sample.files as f64),
        sampled("threads", |sample| sample.threads as f64),
        Panel { title: "tasks of the application's runtime", lines: tasks.collect() },
    ]
}

fn x(at: Moment, length: Duration) -> f64 {
    LEFT + WIDTH * at.as_secs_f64() / length.as_secs_f64()
}

/// Writing to a String cannot fail.
fn legend(svg: &mut String, run_data: &RunData) {
    let _ = writeln!(svg, "<text x=\"8\" y=\"18\" class=\"h\">Resource usage of each instance</text>");
    for instance in 0..run_data.instances {
        let left = 300.0 + 50.0 * f64::from(instance);
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"9\" width=\"12\" height=\"10\" fill=\"{}\"/><text x=\"{}\" y=\"18\">{}</text>",
            color(instance),
            left + 16.0,
            owner(instance)
        );
    }
}

fn faults(svg: &mut String, run_data: &RunData, length: Duration, top: f64) {
    for happened in run_data.happened.iter().filter(|happened| happened.from < length) {
        let (from, to) = (x(happened.from, length), x(happened.to.min(length), length));
        let target = happened.instance.map_or_else(|| "all".to_owned(), owner);
        let _ = writeln!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{PANEL}\" class=\"fault\"><title>{} {target}</title>\
             </rect>",
            (to - from).max(0.5),
            happened.fault.name()
        );
    }
}

fn draw(svg: &mut String, panel: &Panel, length: Duration, top: f64) {
    let values = panel.lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
    let most = round_up(values.fold(1.0, f64::max));
    let bottom = top + PANEL;
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{:.1}\">{}</text>", top - 5.0, panel.title);
    for quarter in 0..=4 {
        let (value, y) = (most * f64::from(quarter) / 4.0, bottom - PANEL * f64::from(quarter) / 4.0);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}h{WIDTH}\"/><text x=\"{}\" y=\"{:.1}\" class=\"e\">{value}</text>",
            LEFT - 6.0,
            y + 4.0
        );
    }
    for tick in 0..=6 {
        let at = length * tick / 6;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"m\">{:.1} min</text>",
            x(at, length),
            bottom + 13.0,
            at.as_secs_f64() / 60.0
        );
    }
    for line in panel.lines.iter().filter(|line| !line.points.is_empty()) {
        let points: Vec<_> = line
            .points
            .iter()
            .map(|(at, value)| format!("{:.1},{:.1}", x(*at, length), bottom - PANEL * value / most))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline class=\"line\" stroke=\"{}\" points=\"{}\"><title>{}</title></polyline>",
            color(line.incarnation.instance),
            points.join(" "),
            line.incarnation
        );
    }
}

/// Rounds up to a number with one digit that is divisible by four.
fn round_up(value: f64) -> f64 {
    let magnitude = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * magnitude).find(|top| *top >= value).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::faults::Happened;
    use crate::chaos::plan::Fault;
    use crate::chaos::run_data::tests::in_order;
    use crate::chaos::samples::Sample;

    #[test]
    fn every_incarnation_and_every_fault_is_drawn() {
        let mut run_data = in_order();
        for observed in &mut run_data.incarnations {
            let sample = |at| Sample { at: Moment::from_secs(at), memory_kib: 20_480, files: 30, threads: 5 };
            observed.samples = (0..10).map(sample).collect();
        }
        let (from, to) = (Moment::from_secs(2), Moment::from_secs(4));
        run_data.happened = vec![Happened { fault: Fault::Freeze, instance: Some(1), from, to }];
        let svg = render(&run_data);
        assert_eq!(svg.matches("<polyline").count(), 6);
        assert_eq!(svg.matches("<title>freeze i2</title>").count(), 4);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }

    #[test]
    fn axes_end_at_round_numbers() {
        let ends = [1.0, 3.0, 17.0, 39.0, 81.0].map(|value| round_up(value).to_string());
        assert_eq!(ends, ["1", "4", "20", "40", "100"]);
    }
}
