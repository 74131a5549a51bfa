//! The median, minimum and maximum of several measurements.

pub(crate) struct Spread {
    min: f64,
    pub(crate) median: f64,
    max: f64,
}

impl Spread {
    pub(crate) fn of<C>(costs: &[C], value: impl Fn(&C) -> f64) -> Self {
        let mut values: Vec<f64> = costs.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        Self { min: values[0], median: values[values.len() / 2], max: values[values.len() - 1] }
    }

    pub(crate) fn show(&self, unit: &str) -> String {
        format!("{:.1} {unit} ({:.1} to {:.1})", self.median, self.min, self.max)
    }
}
