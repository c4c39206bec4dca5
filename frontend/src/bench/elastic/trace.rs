//! Throughput and latency over time, as csv and as SVG; the changes of the ring are shaded.

use std::{error::Error, fmt::Write, time::Duration};

use plotters::prelude::*;

use super::load::{Seen, Statement};
use crate::{
    bench::{
        chart::{self, Panel},
        report::OutputArgs,
    },
    cli::Failure,
};

const SIZE: (u32, u32) = (1200, 800);
/// Statements are gathered over so long a time.
const WINDOW: Duration = Duration::from_millis(500);

/// A change of the ring; times are since the load began.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    /// What it is called.
    pub name: &'static str,
    /// When it was asked for.
    pub begin: Duration,
    /// When all rows had been moved.
    pub end: Duration,
    /// How much of it rows were being moved. Before that, storage processes are cut where ranges will end, and the change is
    /// ordered.
    pub moving: Duration,
    /// Bytes of rows that were moved.
    pub bytes: f64,
}

impl Phase {
    /// Whether it was under way.
    pub fn has(&self, at: Duration) -> bool {
        (self.begin..=self.end).contains(&at)
    }
}

/// What was seen of one kind of statement in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Point {
    seconds: f64,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Writes trace.csv and trace.svg.
///
/// # Errors
/// When it cannot be drawn or written.
pub fn write(output: &OutputArgs, phases: &[Phase], seen: &Seen) -> Result<(), Failure> {
    output.write("trace.csv", || Ok(csv(seen)))?;
    output.write("trace.svg", || draw(phases, seen))
}

/// Each window in which a statement ended.
fn points(seen: &Seen, statement: Statement) -> Vec<Point> {
    let window = |at: Duration| (at.as_secs_f64() / WINDOW.as_secs_f64()) as u64;
    let last = seen.ended.iter().map(|ended| window(ended.due + ended.took)).max().unwrap_or(0);
    let mut windows: Vec<Vec<f64>> = vec![Vec::new(); last as usize + 1];
    for ended in seen.ended.iter().filter(|ended| ended.statement == statement) {
        windows[window(ended.due + ended.took) as usize].push(ended.took.as_secs_f64() * 1e3);
    }
    let point = |(number, mut took): (usize, Vec<f64>)| {
        took.sort_unstable_by(f64::total_cmp);
        let rank = |percent: usize| took.get((took.len() * percent).div_ceil(100).max(1) - 1).copied();
        Point {
            seconds: (number as f64 + 0.5) * WINDOW.as_secs_f64(),
            per_second: took.len() as f64 / WINDOW.as_secs_f64(),
            p50_ms: rank(50).unwrap_or(0.0),
            p99_ms: rank(99).unwrap_or(0.0),
        }
    };
    windows.into_iter().enumerate().map(point).collect()
}

fn csv(seen: &Seen) -> String {
    let mut text = "seconds,statements,per_second,p50_ms,p99_ms\n".to_owned();
    for statement in [Statement::Read, Statement::Write] {
        for Point { seconds, per_second, p50_ms, p99_ms } in points(seen, statement) {
            let name = statement.name();
            // Writing to a string does not fail.
            let _ = writeln!(text, "{seconds:.2},{name},{per_second:.0},{p50_ms:.3},{p99_ms:.3}");
        }
    }
    text
}

fn draw(phases: &[Phase], seen: &Seen) -> Result<String, Box<dyn Error>> {
    let (reads, writes) = (points(seen, Statement::Read), points(seen, Statement::Write));
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (above, below) = root.split_vertically(SIZE.1 / 2);
        let series = [(Statement::Read, &reads[..]), (Statement::Write, &writes[..])];
        panel(&above, "statements per second", phases, &series, |point| point.per_second)?;
        panel(&below, "p99, ms", phases, &series, |point| point.p99_ms)?;
        root.present()?;
    }
    Ok(svg)
}

fn panel(
    area: &Panel<'_>,
    caption: &str,
    phases: &[Phase],
    series: &[(Statement, &[Point])],
    value: impl Fn(&Point) -> f64,
) -> Result<(), Box<dyn Error>> {
    let all = || series.iter().flat_map(|(_, points)| points.iter());
    let end = all().map(|point| point.seconds).fold(1.0, f64::max);
    let most = all().map(&value).fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(70)
        .caption(caption, ("sans-serif", 16))
        .build_cartesian_2d(0.0..end, 0.0..most)?;
    chart.configure_mesh().light_line_style(WHITE).x_desc("seconds").draw()?;
    for phase in phases {
        let (begin, end) = (phase.begin.as_secs_f64(), phase.end.as_secs_f64());
        let shade = Rectangle::new([(begin, 0.0), (end, most)], BLACK.mix(0.1).filled());
        let name = Text::new(phase.name, (begin, most), ("sans-serif", 14));
        chart.draw_series([shade])?;
        chart.draw_series([name])?;
    }
    let line = |(statement, points): &(Statement, &[Point])| {
        (statement.name(), points.iter().map(|point| (point.seconds, value(point))).collect())
    };
    chart::lines(&mut chart, series.iter().map(line).collect(), 0)
}

#[cfg(test)]
mod tests {
    use super::{super::load::Ended, *};

    #[test]
    fn a_trace_has_a_line_for_each_window() {
        let ended = |statement, due, took| Ended {
            statement,
            due: Duration::from_millis(due),
            took: Duration::from_millis(took),
            failure: None,
        };
        let seen = Seen {
            ended: vec![
                ended(Statement::Read, 100, 5),
                ended(Statement::Read, 200, 7),
                ended(Statement::Write, 450, 100),
            ],
            updated: 1,
        };
        let first = Point { seconds: 0.25, per_second: 4.0, p50_ms: 5.0, p99_ms: 7.0 };
        assert_eq!(points(&seen, Statement::Read)[0], first);
        let csv = csv(&seen);
        assert_eq!(csv.lines().count(), 5, "{csv}");
        assert!(csv.contains("\n0.75,UPDATE,2,100.000,100.000\n"), "{csv}");
        let phase = Phase {
            name: "expand",
            begin: Duration::from_millis(100),
            end: Duration::from_millis(300),
            moving: Duration::from_millis(150),
            bytes: 1.0,
        };
        let svg = draw(&[phase], &seen).unwrap();
        for text in ["expand", "p99, ms", "SELECT", "UPDATE"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        assert!(phase.has(Duration::from_millis(200)) && !phase.has(Duration::from_millis(301)));
        draw(&[], &Seen::default()).unwrap();
    }
}
