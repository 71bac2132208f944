//! Figures, and how they are shown: medians and 90th percentiles of samples, in Markdown tables.

use std::fmt;
use std::time::Duration;

/// Values of one kind, in whatever unit.
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// In milliseconds.
    pub(crate) fn time(&mut self, time: Duration) {
        self.push(milliseconds(time));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(50)
    }

    pub(crate) fn most(&self) -> f64 {
        self.quantile(100)
    }

    pub(crate) fn p90(&self) -> f64 {
        self.quantile(90)
    }

    /// The smallest that is not below so many percent of all; not a number where there are none.
    fn quantile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(at).copied().unwrap_or(f64::NAN)
    }
}

impl Extend<f64> for Samples {
    fn extend<T: IntoIterator<Item = f64>>(&mut self, values: T) {
        self.0.extend(values);
    }
}

pub(crate) const fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Rows of cells under a heading.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Self {
        let mut table = Self { rows: Vec::new() };
        table.row(heading);
        table
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [impl Into<String>; N]) {
        self.rows.push(cells.map(Into::into).into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, row) in self.rows.iter().enumerate() {
            writeln!(f, "| {} |", row.join(" | "))?;
            if number == 0 {
                writeln!(f, "| {} |", vec!["---"; row.len()].join(" | "))?;
            }
        }
        Ok(())
    }
}

/// Two decimals, or none where they say nothing; `-` for what is not there.
pub(crate) fn figure(value: f64) -> String {
    match value {
        _ if !value.is_finite() => "-".to_owned(),
        _ if value.abs() >= 100.0 => format!("{value:.0}"),
        _ if value.abs() >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
