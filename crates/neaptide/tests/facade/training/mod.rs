//! Training steps through plans: the bits of the interpreter, under every budget and with every number of threads.

mod models;
mod networks;
mod reference;

mod adapters;
mod bits;
mod budgets;
mod parts;
mod refusals;
mod strategies;
mod text;
