//! Pictures of a plan: text for a terminal, one self-contained page for a browser.

mod html;
mod rects;
mod text;

pub use html::html;
pub use text::{bytes_text, ns_text, text};
