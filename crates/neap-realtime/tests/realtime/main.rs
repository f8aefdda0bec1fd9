//! What is admitted holds, and budgets are chosen as well as can be.

mod budgets;
mod soundness;
