//! Pictures of a plan: text for a terminal, one self-contained page for a browser.

mod html;
mod rects;
mod text;
mod trace;

pub use html::html;
pub use text::{bytes_text, ns_text, text};
pub use trace::{TracePart, write_trace, write_trace_events};
