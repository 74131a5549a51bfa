//! The median of several measurements, and what lies between the least and the most.

pub(crate) struct Spread {
    least: f64,
    pub(crate) median: f64,
    most: f64,
}

impl Spread {
    pub(crate) fn of<C>(costs: &[C], value: impl Fn(&C) -> f64) -> Self {
        let mut values: Vec<f64> = costs.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        Self { least: values[0], median: values[values.len() / 2], most: values[values.len() - 1] }
    }

    pub(crate) fn show(&self, unit: &str) -> String {
        format!("{:.1} {unit} ({:.1} to {:.1})", self.median, self.least, self.most)
    }
}
