//! Ends an answer at given words.

/// Looks for stop strings in a text that comes in pieces, and holds back what may be the beginning of one.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    shown: String,
}

impl StopStrings {
    /// Empty strings stop nothing.
    #[must_use]
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        StopStrings {
            stops: stops.into_iter().filter(|stop| !stop.is_empty()).collect(),
            ..Self::default()
        }
    }

    /// Takes the next piece. Gives the text that is now certain to be before any stop string, and whether one was found: then the
    /// answer is over, and what follows the text given is dropped.
    pub fn push(&mut self, text: &str) -> (&str, bool) {
        self.held.push_str(text);
        let found = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop))
            .min();
        let kept = found.unwrap_or_else(|| self.held.len() - self.beginning());
        self.shown.clear();
        self.shown.extend(self.held.drain(..kept));
        if found.is_some() {
            self.held.clear();
        }
        (&self.shown, found.is_some())
    }

    /// What is left when no more text comes.
    pub fn finish(&mut self) -> &str {
        self.shown.clear();
        std::mem::swap(&mut self.shown, &mut self.held);
        &self.shown
    }

    /// Bytes at the end of the text that a stop string begins with.
    fn beginning(&self) -> usize {
        let of = |stop: &String| {
            let lengths = (1..stop.len()).rev();
            let mut lengths = lengths.filter(|length| stop.is_char_boundary(*length));
            lengths.find(|length| self.held.ends_with(&stop[..*length]))
        };
        self.stops.iter().filter_map(of).max().unwrap_or(0)
    }
}
