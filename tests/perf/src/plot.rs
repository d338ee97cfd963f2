//! A writer of SVG plots: lines over message sizes, with both axes logarithmic.

use std::fmt::Write as _;

use crate::figures::short;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 58.0;
/// Colours that are distinct even for readers with red-green colour blindness.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#555555",
];

/// One line.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Message size in bytes, and figure.
    pub(crate) points: Vec<(u32, f64)>,
    /// Floors are dashed.
    pub(crate) dashed: bool,
}

/// Draws `series`. `unit` is the label of the vertical axis.
pub(crate) fn svg(title: &str, unit: &str, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|line| &line.points);
    let sizes = points().map(|point| f64::from(point.0).log2());
    let Some((x_min, x_max)) = range(sizes) else {
        return String::new();
    };
    let Some((y_min, y_max)) = range(points().map(|point| point.1.max(1e-6).log10())) else {
        return String::new();
    };
    let axes = Axes {
        x: (x_min.floor(), x_max.ceil().max(x_min.floor() + 1.0)),
        y: (y_min.floor(), y_max.ceil().max(y_min.floor() + 1.0)),
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"16\">{}</text>\n",
        escape(title)
    );
    axes.draw(&mut svg, unit);
    for (index, line) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        axes.line(&mut svg, line, colour);
        legend(&mut svg, index, line, colour);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Ranges of the axes in log2 of bytes and log10 of the unit.
#[derive(Debug)]
struct Axes {
    x: (f64, f64),
    y: (f64, f64),
}

impl Axes {
    fn at_x(&self, log: f64) -> f64 {
        LEFT + (log - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn at_y(&self, log: f64) -> f64 {
        HEIGHT - BOTTOM - (log - self.y.0) / (self.y.1 - self.y.0) * (HEIGHT - TOP - BOTTOM)
    }

    fn draw(&self, svg: &mut String, unit: &str) {
        let (left, right, top, bottom) = (LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM);
        let mut log = self.x.0;
        while log <= self.x.1 {
            let x = self.at_x(log);
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {top}V{bottom}\" stroke=\"#ddd\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                size_name(log.exp2())
            );
            log += 2.0;
        }
        let mut decade = self.y.0;
        while decade <= self.y.1 {
            for (factor, label) in [(1.0f64, true), (2.0, true), (5.0, true)] {
                let log = decade + factor.log10();
                if log > self.y.1 + 1e-9 {
                    break;
                }
                let y = self.at_y(log);
                let _ = writeln!(svg, "<path d=\"M{left} {y:.1}H{right}\" stroke=\"#ddd\"/>");
                if label {
                    let _ = writeln!(
                        svg,
                        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                        left - 6.0,
                        y + 4.0,
                        tick(10f64.powf(log))
                    );
                }
            }
            decade += 1.0;
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {top}V{bottom}H{right}\" stroke=\"#333\" fill=\"none\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">message size</text>\
             <text transform=\"translate(18 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(left, right),
            HEIGHT - 16.0,
            f64::midpoint(top, bottom),
            escape(unit)
        );
    }

    fn line(&self, svg: &mut String, line: &Series, colour: &str) {
        let places: Vec<(f64, f64)> = line
            .points
            .iter()
            .map(|&(size, value)| {
                (
                    self.at_x(f64::from(size).log2()),
                    self.at_y(value.max(1e-6).log10()),
                )
            })
            .collect();
        let path: Vec<String> = places
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let dashes = if line.dashed {
            " stroke-dasharray=\"6 4\""
        } else {
            ""
        };
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
            path.join(" ")
        );
        for ((x, y), (size, value)) in places.iter().zip(&line.points) {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{}, {}: {}</title></circle>",
                escape(&line.name),
                size_name(f64::from(*size)),
                short(*value)
            );
        }
    }
}

fn legend(svg: &mut String, index: usize, line: &Series, colour: &str) {
    let row = u32::try_from(index).map_or(0.0, f64::from);
    let (x, y) = (WIDTH - RIGHT + 16.0, TOP + 10.0 + 22.0 * row);
    let dashes = if line.dashed {
        " stroke-dasharray=\"6 4\""
    } else {
        ""
    };
    let _ = writeln!(
        svg,
        "<path d=\"M{x:.1} {y:.1}h26\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>\
         <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        x + 32.0,
        y + 4.0,
        escape(&line.name)
    );
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| {
        let (least, most) = range.unwrap_or((value, value));
        Some((least.min(value), most.max(value)))
    })
}

/// Formats a size as `8`, `4K` or `1M`.
pub(crate) fn size_name(bytes: f64) -> String {
    if bytes >= 1_048_576.0 {
        format!("{}M", bytes / 1_048_576.0)
    } else if bytes >= 1024.0 {
        format!("{}K", bytes / 1024.0)
    } else {
        format!("{bytes}")
    }
}

fn tick(value: f64) -> String {
    if value >= 1.0 {
        format!("{value:.0}")
    } else {
        let text = format!("{value:.4}");
        text.trim_end_matches('0').to_owned()
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_every_point_and_escapes_names() {
        let series = Series {
            name: "a<b".to_owned(),
            points: vec![(8, 0.5), (1024, 20.0), (1 << 20, 31.0)],
            dashed: true,
        };
        let svg = svg("t", "Gbit/s", &[series]);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("a&lt;b, 1K: 20.0"));
        assert!(svg.contains("stroke-dasharray"));
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn nothing_measured_is_no_plot() {
        assert_eq!(svg("t", "u", &[]), "");
    }
}
