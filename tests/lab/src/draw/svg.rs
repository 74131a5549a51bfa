//! Draws a picture as SVG for a browser: a tooltip explains each element.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use super::picture::{Disturbance, Lane, Moment, Owner, Picture, ProcessState, Row, Span};

/// Okabe and Ito's colors, which most people can distinguish; without black, with gray.
const COLORS: [&str; 8] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"];

/// The total width is that of a README.
const LEFT: f64 = 40.0;
const WIDTH: f64 = 836.0;
const RIGHT: f64 = 24.0;
const LEGEND: f64 = 44.0;
const LABELS: f64 = 34.0;
const LANE: f64 = 14.0;
const GAP: f64 = 16.0;
const AXIS: f64 = 28.0;
/// The approximate width of a letter.
const LETTER: f64 = 6.2;

const STYLE: &str = "text{font:11px sans-serif;fill:#333}.h{font-weight:bold;font-size:13px}.m{text-anchor:middle}\
    .e{text-anchor:end}.grid{stroke:#000;stroke-opacity:.12}.lag{fill:none;stroke:#000;stroke-width:1.2;stroke-opacity:.75}\
    .crash{stroke:#c00;stroke-width:2.2}.crashline{stroke:#c00;stroke-dasharray:3 3;stroke-opacity:.8}\
    .moment{stroke:#333;stroke-dasharray:1 3}.fault{fill:#c00;fill-opacity:.13}.own{fill:url(#fault)}\
    .unread{fill:#1a1a1a}.down,.absent{fill:#eee}\
    .n{font-size:10px;fill:#000}";

const PATTERNS: &str = "<defs><pattern id=\"crashed\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
    patternTransform=\"rotate(45)\"><rect width=\"4\" height=\"6\" fill=\"#1a1a1a\"/></pattern>\
    <pattern id=\"frozen\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\"><rect width=\"2.5\" height=\"5\" \
    fill=\"#fff\"/></pattern><pattern id=\"fault\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\" \
    patternTransform=\"rotate(-45)\"><rect width=\"1.5\" height=\"4\" fill=\"#c00\"/></pattern>\
    <pattern id=\"second\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\"><rect width=\"2\" height=\"2\" \
    fill=\"#fff\" fill-opacity=\".7\"/></pattern></defs>";

/// Returns the whole document.
pub fn render(picture: &Picture) -> String {
    let mut canvas = Canvas::new(picture);
    canvas.head(picture);
    canvas.legend(picture);
    canvas.lanes(&picture.lanes);
    canvas.rows(&picture.rows);
    canvas.grid();
    for disturbance in &picture.disturbances {
        canvas.disturbance_of_all(disturbance);
    }
    for (member, lane) in (0u32..).zip(&picture.lanes) {
        canvas.crashes(member, lane);
    }
    canvas.moments(&picture.moments);
    canvas.text.push_str("</svg>\n");
    canvas.text
}

/// Escapes text for elements and attributes.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Formats minutes and seconds, with hours if there are any.
fn clock(at: Duration) -> String {
    let seconds = at.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

fn color(member: u32) -> &'static str {
    COLORS[member as usize % COLORS.len()]
}

/// Members beyond the number of colors are dotted.
fn is_dotted(member: u32) -> bool {
    member as usize >= COLORS.len()
}

struct Canvas {
    text: String,
    names: Vec<String>,
    length: Duration,
    top_of_lanes: f64,
    top_of_rows: f64,
    row: f64,
    bottom: f64,
}

impl Canvas {
    fn new(picture: &Picture) -> Self {
        let row = if picture.rows.len() > 48 { 8.0 } else { 18.0 };
        let top_of_lanes = LEGEND + LABELS;
        let top_of_rows = top_of_lanes + LANE * picture.lanes.len() as f64 + GAP;
        let bottom = top_of_rows + row * picture.rows.len() as f64;
        let names = picture.lanes.iter().map(|lane| lane.name.clone()).collect();
        Self { text: String::new(), names, length: picture.length, top_of_lanes, top_of_rows, row, bottom }
    }

    fn name(&self, member: u32) -> &str {
        self.names.get(member as usize).map_or("unknown", String::as_str)
    }

    /// Writing to a String cannot fail.
    fn write(&mut self, value: impl Display) {
        let _ = writeln!(self.text, "{value}");
    }

    fn x(&self, at: Duration) -> f64 {
        LEFT + WIDTH * (at.as_secs_f64() / self.length.as_secs_f64().max(1.0)).min(1.0)
    }

    fn head(&mut self, picture: &Picture) {
        let (width, height) = (LEFT + WIDTH + RIGHT, self.bottom + AXIS);
        self.write(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\">\n<style>{STYLE}</style>\n{PATTERNS}\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>"
        ));
        self.label(8.0, 16.0, "h", &picture.title);
    }

    fn label(&mut self, x: f64, y: f64, class: &str, text: &str) {
        self.write(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escaped(text)));
    }

    /// The appearance is in `style`: attributes.
    fn bar(&mut self, (x, to): (f64, f64), (y, height): (f64, f64), style: &str, title: &str) {
        self.write(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" {style}><title>{}</title></rect>",
            (to - x).max(0.4),
            escaped(title)
        ));
    }

    fn member_bar(&mut self, x: (f64, f64), y: (f64, f64), member: u32, title: &str) {
        self.bar(x, y, &format!("fill=\"{}\"", color(member)), title);
        if is_dotted(member) {
            self.bar(x, y, "fill=\"url(#second)\"", title);
        }
    }

    /// Explains the signs that occur. The names of instances are next to their lanes.
    fn legend(&mut self, picture: &Picture) {
        let of_rows =
            |wanted: fn(Owner) -> bool| picture.rows.iter().flat_map(|row| &row.spans).any(|s| wanted(s.value));
        let of_lanes =
            |wanted: ProcessState| picture.lanes.iter().flat_map(|lane| &lane.spans).any(|s| s.value == wanted);
        let signs = [
            (of_rows(|owner| owner == Owner::NoReader), "class=\"unread\"", "no reader"),
            (of_rows(|owner| matches!(owner, Owner::Crashed(_))), "fill=\"url(#crashed)\"", "owner crashed"),
            (of_lanes(ProcessState::Down), "class=\"down\"", "down"),
            (of_lanes(ProcessState::Frozen), "fill=\"url(#frozen)\" stroke=\"#333\"", "frozen"),
            (picture.lanes.iter().any(|lane| !lane.disturbances.is_empty()), "class=\"own\"", "fault of one instance"),
            (!picture.disturbances.is_empty(), "class=\"fault\"", "fault of all instances"),
        ];
        let (mut x, y) = (8.0, 27.0);
        for (_, style, name) in signs.into_iter().filter(|(occurs, _, _)| *occurs) {
            self.bar((x, x + 12.0), (y, 12.0), style, name);
            self.label(x + 16.0, y + 10.0, "", name);
            x += 28.0 + LETTER * name.len() as f64;
        }
        if picture.lanes.iter().any(|lane| !lane.crashes.is_empty()) {
            self.cross(x + 6.0, y + 6.0, "crash");
            self.label(x + 16.0, y + 10.0, "", "crash");
            x += 28.0 + LETTER * 5.0;
        }
        if picture.rows.iter().all(|row| row.lag.is_empty()) {
            return;
        }
        self.write(format_args!("<path class=\"lag\" d=\"M{x:.1} {:.1}l4 -8l4 4l4 3\"/>", y + 11.0));
        self.label(x + 16.0, y + 10.0, "", "checkpoint lag");
    }

    fn lanes(&mut self, lanes: &[Lane]) {
        for (member, lane) in (0u32..).zip(lanes) {
            let y = self.top_of_lanes + LANE * f64::from(member);
            self.label(LEFT - 6.0, y + 10.0, "e", &lane.name);
            for span in &lane.spans {
                self.lane_span(member, lane, span, y);
            }
            for disturbance in &lane.disturbances {
                let title = format!(
                    "{}: {} from {} to {}",
                    lane.name,
                    disturbance.name,
                    clock(disturbance.from),
                    clock(disturbance.to)
                );
                let x = (self.x(disturbance.from), self.x(disturbance.to));
                self.bar(x, (y + 1.0, LANE - 3.0), "class=\"own\"", &title);
            }
            if let Some(up) = lane.spans.iter().find(|span| span.value != ProcessState::Down) {
                let x = self.x(up.from) + 4.0;
                self.label(x, y + 10.0, "n", &lane.note);
            }
        }
    }

    fn lane_span(&mut self, member: u32, lane: &Lane, span: &Span<ProcessState>, y: f64) {
        let state = match span.value {
            ProcessState::Down => "not running",
            ProcessState::Up => "running",
            ProcessState::Frozen => "frozen",
        };
        let title = format!("{}: {state} from {} to {}", lane.name, clock(span.from), clock(span.to));
        let (x, y) = ((self.x(span.from), self.x(span.to)), (y + 1.0, LANE - 3.0));
        if span.value == ProcessState::Down {
            self.bar(x, y, "class=\"down\"", &title);
            return;
        }
        self.member_bar(x, y, member, &title);
        if span.value == ProcessState::Frozen {
            self.bar(x, y, "fill=\"url(#frozen)\"", &title);
        }
    }

    fn rows(&mut self, rows: &[Row]) {
        let worst = rows.iter().flat_map(|row| &row.lag).map(|(_, events)| *events).max().unwrap_or(0).max(1);
        for (partition, row) in rows.iter().enumerate() {
            let y = self.top_of_rows + self.row * partition as f64;
            if self.row > 10.0 || partition % 8 == 0 {
                self.label(LEFT - 6.0, y + self.row * 0.7, "e", &format!("p{partition}"));
            }
            for span in &row.spans {
                self.row_span(partition, span, y);
            }
            self.lag(&row.lag, worst, y);
            for moment in &row.moments {
                self.sign(moment, partition, y);
            }
        }
    }

    fn row_span(&mut self, partition: usize, span: &Span<Owner>, y: f64) {
        let owner = match span.value {
            Owner::Absent => "not created yet".to_owned(),
            Owner::NoReader => "no reader".to_owned(),
            Owner::Member(member) => self.name(member).to_owned(),
            Owner::Crashed(member) => format!("no reader, {} crashed", self.name(member)),
            Owner::Frozen(member) => format!("{}, which is frozen", self.name(member)),
        };
        let title = format!("partition {partition}: {owner} from {} to {}", clock(span.from), clock(span.to));
        let (x, y) = ((self.x(span.from), self.x(span.to)), (y + 0.5, self.row - 1.0));
        match span.value {
            Owner::Absent => self.bar(x, y, "class=\"absent\"", &title),
            Owner::NoReader => self.bar(x, y, "class=\"unread\"", &title),
            Owner::Member(member) => self.member_bar(x, y, member, &title),
            Owner::Crashed(member) => {
                self.member_bar(x, y, member, &title);
                self.bar(x, y, "fill=\"url(#crashed)\"", &title);
            }
            Owner::Frozen(member) => {
                self.member_bar(x, y, member, &title);
                self.bar(x, y, "fill=\"url(#frozen)\"", &title);
            }
        }
    }

    /// The square root makes small lags visible next to large ones.
    fn lag(&mut self, lag: &[(Duration, i64)], worst: i64, y: f64) {
        let points: Vec<_> = lag
            .iter()
            .map(|(at, events)| {
                let share = (*events.max(&0) as f64 / worst as f64).sqrt();
                format!("{:.1},{:.1}", self.x(*at), y + self.row - 2.0 - share * (self.row - 4.0))
            })
            .collect();
        if !points.is_empty() {
            let most = lag.iter().map(|(_, events)| *events).max().unwrap_or(0);
            self.write(format_args!(
                "<polyline class=\"lag\" points=\"{}\"><title>lag, up to {most} events</title></polyline>",
                points.join(" ")
            ));
        }
    }

    fn sign(&mut self, moment: &Moment, partition: usize, y: f64) {
        let (x, y) = (self.x(moment.at), y + self.row / 2.0);
        self.write(format_args!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"#fff\" stroke=\"#000\"><title>partition {partition}: {} at {}\
             </title></circle>",
            escaped(&moment.name),
            clock(moment.at)
        ));
    }

    fn grid(&mut self) {
        let minutes = self.length.as_secs() / 60;
        let step = [1, 2, 5, 10, 15, 30, 60, 120].into_iter().find(|step| minutes / step <= 14).unwrap_or(240);
        for minute in (0..=minutes).step_by(usize::try_from(step).unwrap_or(1)) {
            let (x, top, bottom) = (self.x(Duration::from_secs(60 * minute)), self.top_of_lanes, self.bottom);
            self.write(format_args!("<path class=\"grid\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/>"));
            self.label(x, bottom + 15.0, "m", &format!("{minute} min"));
        }
    }

    fn disturbance_of_all(&mut self, disturbance: &Disturbance) {
        let title = format!("{} from {} to {}", disturbance.name, clock(disturbance.from), clock(disturbance.to));
        let (x, y) = ((self.x(disturbance.from), self.x(disturbance.to)), self.top_of_lanes);
        self.bar(x, (y, self.bottom - y), "class=\"fault\"", &title);
    }

    fn crashes(&mut self, member: u32, lane: &Lane) {
        for at in &lane.crashes {
            let (x, y) = (self.x(*at), self.top_of_lanes + LANE * (f64::from(member) + 0.5) - 0.5);
            let title = format!("{} crashes at {}", lane.name, clock(*at));
            let bottom = self.bottom;
            self.write(format_args!(
                "<path class=\"crashline\" d=\"M{x:.1} {y:.1}V{bottom:.1}\"><title>{}</title></path>",
                escaped(&title)
            ));
            self.cross(x, y, &title);
        }
    }

    fn cross(&mut self, x: f64, y: f64, title: &str) {
        self.write(format_args!(
            "<path class=\"crash\" d=\"M{:.1} {:.1}l8 8m0 -8l-8 8\"><title>{}</title></path>",
            x - 4.0,
            y - 4.0,
            escaped(title)
        ));
    }

    /// Labels moments if there is enough space.
    fn moments(&mut self, moments: &[Moment]) {
        let mut taken = 0.0;
        for moment in moments {
            let (x, top, bottom) = (self.x(moment.at), self.top_of_lanes - 4.0, self.bottom);
            let title = format!("{} at {}", moment.name, clock(moment.at));
            self.write(format_args!(
                "<path class=\"moment\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"><title>{}</title></path>",
                escaped(&title)
            ));
            let width = LETTER * moment.name.chars().count() as f64;
            let from = (x - width / 2.0).min(LEFT + WIDTH + RIGHT - width);
            if from > taken {
                self.label(from, self.top_of_lanes - 8.0, "", &moment.name);
                taken = from + width + 4.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::picture::tests::sample;

    #[test]
    fn text_is_escaped() {
        let mut picture = sample();
        picture.title = "a < b & \"c\"".to_owned();
        picture.rows[0].moments.push(Moment { at: Duration::ZERO, name: "<script>".to_owned() });
        let svg = render(&picture);
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;") && svg.contains("&lt;script&gt;"));
        assert!(!svg.contains("<script>"));
    }

    #[test]
    fn every_span_is_drawn_within_the_frame() {
        let picture = sample();
        let svg = render(&picture);
        let spans: usize = picture.rows.iter().map(|row| row.spans.len()).sum();
        assert!(svg.matches("<title>partition ").count() >= spans);
        for x in svg.split(" x=\"").skip(1).filter_map(|rest| rest.split('"').next()?.parse::<f64>().ok()) {
            assert!((0.0..=LEFT + WIDTH + RIGHT).contains(&x), "{x}");
        }
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn times_are_easy_to_read() {
        assert_eq!(clock(Duration::from_secs(75)), "1:15");
        assert_eq!(clock(Duration::from_secs(3 * 3600 + 65)), "3:01:05");
    }

    #[test]
    fn the_legend_explains_what_occurs_and_fits() {
        let mut picture = sample();
        let svg = render(&picture);
        assert!(
            svg.contains(">owner crashed<") && svg.contains(">frozen<") && !svg.contains(">fault of all instances<")
        );
        let (from, to) = (Duration::ZERO, Duration::from_secs(9));
        picture.disturbances.push(Disturbance { from, to, name: "storage outage".to_owned() });
        let svg = render(&picture);
        assert!(svg.contains(">fault of all instances<"));
        let last = svg.lines().find(|line| line.contains(">checkpoint lag<")).unwrap();
        let x: f64 = last.split('"').nth(1).unwrap().parse().unwrap();
        assert!(x + LETTER * 14.0 <= LEFT + WIDTH + RIGHT, "{last}");
    }
}
