//! Parts of planning that can be left out, to measure what each is worth.

/// What a planner may do; everything, by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    pub effort: Effort,
    /// Offsets are planned for all buffers together, and weights come into whatever is free beside
    /// them. Without it, buffers lie where an allocator puts them that goes with the run and knows
    /// nothing of what comes, and weights have memory of their own:
    ///
    /// ```text
    ///   static   ▤▤ a ▤▤▤ b ▤ c ▤▤     ▤ weights         allocated   ▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤▤
    ///                                                                a     b     c
    /// ```
    pub static_memory: bool,
    /// The end of one run loads for the beginning of the next.
    pub cyclic: bool,
    /// Where a budget is too small otherwise, activations are stored to a spill file and loaded back.
    pub spill: bool,
    /// States may be among those, and then come and go in each run. A plan with such states cannot be followed by another.
    pub stream_states: bool,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            effort: Effort::Thorough,
            static_memory: true,
            cyclic: true,
            spill: true,
            stream_states: false,
        }
    }
}

/// How many windows and slicings are tried. More memory predicts no slower plan at the same effort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Effort {
    /// For a plan that is made once: tens of milliseconds for the largest networks.
    #[default]
    Thorough,
    /// For a budget that changes while a model runs: about a third of that, for plans that are mostly
    /// as good and up to a few percent slower.
    Quick,
}
