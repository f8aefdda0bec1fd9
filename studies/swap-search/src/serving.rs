//! Several models that share a device, one request after another (SwapAdvisor, Section 6.3 and Figure 8).

use neap_planner::Random;

/// What one request costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Service {
    pub models: usize,
    pub run_ns: f64,
    /// More when the model is not the one that ran before: its parameters must be loaded first.
    pub switch_ns: f64,
}

/// A request for one of the models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// When it arrives, since the beginning.
    pub at_ns: f64,
    pub model: usize,
}

/// Requests without end that arrive as a Poisson process, each for any of the models.
pub struct Arrivals {
    random: Random,
    models: usize,
    per_second: f64,
    now_ns: f64,
}

impl Arrivals {
    /// `models` and `per_second` are more than nothing. The same seed gives the same draws at every rate.
    pub fn new(models: usize, per_second: f64, seed: u64) -> Self {
        Self {
            random: Random::new(seed, 0, 0),
            models,
            per_second,
            now_ns: 0.0,
        }
    }
}

impl Iterator for Arrivals {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        self.now_ns += -(1.0 - self.random.unit()).ln() / self.per_second * 1e9;
        Some(Request {
            at_ns: self.now_ns,
            model: self.random.below(self.models),
        })
    }
}

/// Latencies in nanoseconds of requests that are served one at a time, first come first served; ascending.
/// `service_ns` tells what one takes, and hears whether its model is another than the one before.
pub fn queue_ns(
    requests: impl Iterator<Item = Request>,
    mut service_ns: impl FnMut(bool) -> f64,
) -> Vec<f64> {
    let mut free_ns = 0.0f64;
    let mut last = None;
    let mut latencies: Vec<f64> = requests
        .map(|request| {
            let switches = last.replace(request.model) != Some(request.model);
            free_ns = free_ns.max(request.at_ns) + service_ns(switches);
            free_ns - request.at_ns
        })
        .collect();
    latencies.sort_unstable_by(f64::total_cmp);
    latencies
}

/// [`queue_ns`] of so many requests that each take what `service` says.
pub fn latencies_ns(
    service: &Service,
    arrivals_per_second: f64,
    requests: usize,
    seed: u64,
) -> Vec<f64> {
    let arrivals = Arrivals::new(service.models.max(1), arrivals_per_second, seed);
    queue_ns(arrivals.take(requests), |switches| {
        let extra_ns = if switches { service.switch_ns } else { 0.0 };
        service.run_ns + extra_ns
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_wait_as_theory_says() {
        // M/D/1 at half load: mean wait is run/2.
        let service = Service {
            models: 4,
            run_ns: 1e6,
            switch_ns: 0.0,
        };
        let all = latencies_ns(&service, 500.0, 100_000, 1);
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        assert!((mean / 1.5e6 - 1.0).abs() < 0.03, "{mean}");
        let rarely = latencies_ns(&service, 1e-3, 100, 1);
        assert_eq!(rarely.first(), rarely.last(), "nobody waits");
    }

    #[test]
    fn switching_costs_more_with_more_models() {
        let mean = |models| {
            let service = Service {
                models,
                run_ns: 1e6,
                switch_ns: 1e6,
            };
            let all = latencies_ns(&service, 1.0, 20_000, 2);
            all.iter().sum::<f64>() / all.len() as f64
        };
        assert!((mean(4) / 1.75e6 - 1.0).abs() < 0.02);
        assert!((mean(16) / 1.9375e6 - 1.0).abs() < 0.02);
    }

    #[test]
    fn arrivals_are_as_frequent_as_asked_and_fair() {
        let all: Vec<Request> = Arrivals::new(4, 50.0, 3).take(20_000).collect();
        let seconds = all.last().map_or(0.0, |r| r.at_ns / 1e9);
        assert!((seconds / 400.0 - 1.0).abs() < 0.03, "{seconds}");
        for model in 0..4 {
            let count = all.iter().filter(|r| r.model == model).count();
            assert!((4_500..5_500).contains(&count), "{model}: {count}");
        }
        let faster: Vec<usize> = Arrivals::new(4, 100.0, 3)
            .take(9)
            .map(|r| r.model)
            .collect();
        let models: Vec<usize> = all.iter().take(9).map(|r| r.model).collect();
        assert_eq!(faster, models);
    }
}
