//! Several models that share a device, one request after another (SwapAdvisor, Figure 8).

use super::random::Random;

/// What one request costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Service {
    pub models: usize,
    pub run_ns: f64,
    /// More when the model is not the one that ran before: its parameters must be loaded first.
    pub switch_ns: f64,
}

/// Latencies of `requests` that arrive as a Poisson process, each for any of the models, first come first
/// served; ascending.
pub fn latencies_ns(
    service: &Service,
    arrivals_per_second: f64,
    requests: usize,
    seed: u64,
) -> Vec<f64> {
    let mut random = Random::new(seed, 0, 0);
    let mut now_ns = 0.0;
    let mut free_ns = 0.0f64;
    let mut last = None;
    let mut latencies: Vec<f64> = (0..requests)
        .map(|_| {
            now_ns += -(1.0 - random.unit()).ln() / arrivals_per_second * 1e9;
            let model = random.below(service.models.max(1));
            let switches = last.replace(model) != Some(model);
            let extra_ns = if switches { service.switch_ns } else { 0.0 };
            free_ns = free_ns.max(now_ns) + service.run_ns + extra_ns;
            free_ns - now_ns
        })
        .collect();
    latencies.sort_unstable_by(f64::total_cmp);
    latencies
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
}
