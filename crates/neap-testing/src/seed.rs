//! Random tests draw the same cases every time, unless other ones are asked for.

/// `NEAP_SEED`, or 0: where a test's seeds begin.
///
/// # Panics
/// When the variable is no number.
pub fn seed() -> u64 {
    match std::env::var("NEAP_SEED") {
        // Far apart, so that the cases of two seeds do not overlap.
        Ok(text) => text.parse::<u64>().expect("NEAP_SEED is a number") << 20,
        Err(_) => 0,
    }
}
