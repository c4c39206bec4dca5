//! Plots as SVG: the lines of all of them, and throughput and 99th percentile against clients.

use std::{error::Error, ops::Range};

use plotters::{
    coord::{Shift, ranged1d::Ranged},
    prelude::*,
};

use super::measured::Measured;

const SIZE: (u32, u32) = (1200, 500);
/// Colours that people tell apart who do not see all of them, in the order of the lines.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(110, 110, 110),
    RGBColor(204, 121, 167),
    BLACK,
];

/// A part of a drawing.
pub type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws lines by their names, with a dot of `point_size` at each point, and a legend.
///
/// # Errors
/// What the drawing library says.
pub fn lines<'a, X: Ranged<ValueType = f64>, Y: Ranged<ValueType = f64>>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    lines: Vec<(&str, Vec<(f64, f64)>)>,
    point_size: u32,
) -> Result<(), Box<dyn Error>> {
    for ((name, points), colour) in lines.into_iter().zip(COLOURS.into_iter().cycle()) {
        let line = LineSeries::new(points, colour.stroke_width(2)).point_size(point_size);
        chart
            .draw_series(line)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// Draws what was measured against the number of clients, which is called `clients`; one line for each system.
///
/// # Errors
/// What the drawing library says.
pub fn throughput_and_p99(
    title: &str,
    clients: &str,
    measured: &[Measured],
) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (left, right) = root.titled(title, ("sans-serif", 20))?.split_horizontally(SIZE.0 / 2);
        panel(&left, "per second", clients, measured, |point| point.per_second)?;
        panel(&right, "p99, ms", clients, measured, |point| point.p99.as_secs_f64() * 1e3)?;
        root.present()?;
    }
    Ok(svg)
}

fn panel(
    area: &Panel<'_>,
    caption: &str,
    clients: &str,
    measured: &[Measured],
    value: impl Fn(&Measured) -> f64,
) -> Result<(), Box<dyn Error>> {
    let numbers = range(measured.iter().map(|point| f64::from(point.clients)));
    let values = range(measured.iter().map(&value));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(70)
        .caption(caption, ("sans-serif", 16))
        .build_cartesian_2d(numbers.log_scale(), values.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc(clients)
        .x_label_formatter(&|number| format!("{number}"))
        .y_label_formatter(&|value| format!("{value}"))
        .draw()?;
    let mut systems: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for point in measured {
        let at = (f64::from(point.clients), value(point));
        match systems.iter_mut().find(|(system, _)| *system == point.system) {
            Some((_, points)) => points.push(at),
            None => systems.push((&point.system, vec![at])),
        }
    }
    // Nothing has no place on a logarithmic scale.
    systems.iter_mut().for_each(|(_, points)| points.retain(|(_, value)| *value > 0.0));
    lines(&mut chart, systems, 3)
}

/// A little more than the values cover; not empty.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values
        .filter(|value| *value > 0.0)
        .fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if low > high { 1.0..10.0 } else { low / 1.5..high * 1.5 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::measured::{Kind, Turn},
        *,
    };

    #[test]
    fn every_system_has_its_line() {
        let point = |system: &str, clients, statements, milliseconds| {
            let latencies = vec![Duration::from_millis(milliseconds); statements];
            let turn = Turn { latencies, elapsed: Duration::from_secs(1), ..Turn::default() };
            Measured::new(system, Kind::Scanning, clients, &[turn])
        };
        let measured = [point("A", 1, 100, 9), point("A", 1024, 9_000, 90), point("B & co", 1, 7, 0)];
        let svg = throughput_and_p99("title", "clients", &measured).unwrap();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
        for text in ["title", "per second", "p99, ms", "B &amp; co"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        assert!(svg.matches("<polyline").count() >= 4);
        throughput_and_p99("nothing", "clients", &[]).unwrap();
    }
}
