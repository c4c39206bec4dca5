//! Throughput and 99th percentile against clients, as SVG.

use std::{error::Error, ops::Range};

use plotters::{coord::Shift, prelude::*};

use super::Measured;

const SIZE: (u32, u32) = (1200, 500);
/// Colours that people tell apart who do not see all of them, in the order of the systems.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(110, 110, 110),
];

type Panel<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws what was measured; one line for each system.
///
/// # Errors
/// What the drawing library says.
pub fn draw(title: &str, measured: &[Measured]) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (left, right) = root.titled(title, ("sans-serif", 20))?.split_horizontally(SIZE.0 / 2);
        panel(&left, "statements per second", measured, |point| point.per_second)?;
        panel(&right, "p99, ms", measured, |point| point.p99.as_secs_f64() * 1e3)?;
        root.present()?;
    }
    Ok(svg)
}

fn panel(
    area: &Panel,
    caption: &str,
    measured: &[Measured],
    value: impl Fn(&Measured) -> f64,
) -> Result<(), Box<dyn Error>> {
    let clients = range(measured.iter().map(|point| f64::from(point.clients)));
    let values = range(measured.iter().map(&value));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(70)
        .caption(caption, ("sans-serif", 16))
        .build_cartesian_2d(clients.log_scale(), values.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("clients")
        .x_label_formatter(&|clients| format!("{clients}"))
        .y_label_formatter(&|value| format!("{value}"))
        .draw()?;
    let mut systems: Vec<&str> = Vec::new();
    for point in measured {
        if !systems.contains(&&point.system[..]) {
            systems.push(&point.system);
        }
    }
    for (system, colour) in systems.into_iter().zip(COLOURS.into_iter().cycle()) {
        let points = measured
            .iter()
            .filter(|point| point.system == system)
            .map(|point| (f64::from(point.clients), value(point)));
        let line = LineSeries::new(points, colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)?
            .label(system)
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

    use super::*;

    #[test]
    fn every_system_has_its_line() {
        let point = |system: &str, clients, per_second, milliseconds| Measured {
            system: system.to_owned(),
            clients,
            per_second,
            p50: Duration::ZERO,
            p90: Duration::ZERO,
            p99: Duration::from_millis(milliseconds),
            statements: 1,
        };
        let measured = [point("A", 1, 100.0, 9), point("A", 1024, 9_000.0, 90), point("B & co", 1, 7.0, 0)];
        let svg = draw("title", &measured).unwrap();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
        for text in ["title", "statements per second", "p99, ms", "B &amp; co"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        assert!(svg.matches("<polyline").count() >= 4);
        draw("nothing", &[]).unwrap();
    }
}
