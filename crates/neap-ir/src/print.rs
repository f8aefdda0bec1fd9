//! Human-readable listing of a graph, one node a line.

use crate::{Graph, Layout, ValueId};
use std::fmt;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &input in &self.inputs {
            writeln!(f, "input  {}", Show(self, input))?;
        }
        for node in &self.nodes {
            for (i, output) in node.present_outputs().enumerate() {
                write!(
                    f,
                    "{}{}",
                    if i == 0 { "" } else { ", " },
                    Show(self, output)
                )?;
            }
            write!(f, " = {}", node.op.name())?;
            for (i, input) in node.inputs.iter().enumerate() {
                f.write_str(if i == 0 { "(" } else { ", " })?;
                match input {
                    Some(id) => f.write_str(&self.value(*id).name)?,
                    None => f.write_str("-")?,
                }
            }
            f.write_str(if node.inputs.is_empty() { "()" } else { ")" })?;
            if let Some(panels) = node.panels {
                write!(f, " panels #{}", panels.0)?;
            }
            writeln!(f)?;
        }
        for &output in &self.outputs {
            writeln!(f, "output {}", Show(self, output))?;
        }
        Ok(())
    }
}

struct Show<'a>(&'a Graph, ValueId);

impl fmt::Display for Show<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0.value(self.1);
        write!(f, "{}: {}[", value.name, value.ty.dtype)?;
        for (i, d) in value.ty.shape.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { "x" })?;
        }
        f.write_str(if value.layout == Layout::Blocked {
            "]b"
        } else {
            "]"
        })
    }
}
