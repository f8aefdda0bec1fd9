//! Which bytes of which values hold the same elements, whatever memory they will lie in.
//!
//! ```text
//! X            [ x0 x1 x2 x3 ]      computed: a piece of its own
//! A, B = split [ x0 x1 ] [ x2 x3 ]  pieces of X
//! C = concat   [ x2 x3 | y0 y1 ]    a piece of X, a piece of Y
//! ```

use crate::place::views;
use neap_ir::Graph;

/// For every value the pieces it consists of, in order and without gaps.
pub(crate) struct Contents {
    pieces: Vec<Vec<Piece>>,
}

/// `bytes` bytes of the value's memory from `at` on are those of `origin` from `from` on.
#[derive(Clone, Copy)]
struct Piece {
    at: i64,
    bytes: i64,
    origin: usize,
    from: i64,
}

impl Contents {
    pub fn of(graph: &Graph) -> Contents {
        let bytes_of = |v: usize| graph.values[v].len_bytes() as i64;
        let mut contents = Contents {
            pieces: (0..graph.values.len())
                .map(|origin| {
                    vec![Piece {
                        at: 0,
                        bytes: bytes_of(origin),
                        origin,
                        from: 0,
                    }]
                })
                .collect(),
        };
        for node in &graph.nodes {
            let found = views(graph, node).unwrap_or_default();
            let fits = |view: &crate::place::View| {
                view.offset as i64 + bytes_of(view.inner.index()) <= bytes_of(view.outer.index())
            };
            if !found.iter().all(fits) {
                continue;
            }
            let mut joined: Option<(usize, Vec<Piece>)> = None;
            for view in found {
                let (inner, outer) = (view.inner.index(), view.outer.index());
                let offset = view.offset as i64;
                // What is joined is the node's only result.
                if node.outputs.first() != Some(&Some(view.outer)) {
                    contents.pieces[inner] = contents.part(outer, offset, bytes_of(inner));
                } else {
                    let parts = &mut joined.get_or_insert((outer, Vec::new())).1;
                    let moved = contents.pieces[inner].iter().map(|p| Piece {
                        at: p.at + offset,
                        ..*p
                    });
                    parts.extend(moved);
                }
            }
            if let Some((whole, parts)) = joined
                && parts.iter().map(|p| p.bytes).sum::<i64>() == bytes_of(whole)
            {
                contents.pieces[whole] = parts;
            }
        }
        contents
    }

    /// What lies in `bytes` bytes of `value` from `offset` on.
    fn part(&self, value: usize, offset: i64, bytes: i64) -> Vec<Piece> {
        let mut found = Vec::new();
        let pieces = &self.pieces[value];
        let first = pieces.partition_point(|p| p.at + p.bytes <= offset);
        let inside = pieces[first..].iter();
        for piece in inside.take_while(|p| p.at < offset + bytes) {
            let begin = piece.at.max(offset);
            let end = (piece.at + piece.bytes).min(offset + bytes);
            if begin < end {
                found.push(Piece {
                    at: begin - offset,
                    bytes: end - begin,
                    origin: piece.origin,
                    from: piece.from + begin - piece.at,
                });
            }
        }
        found
    }

    /// Whether `bytes` bytes of one value and of another, each from its offset on, are the same.
    pub fn agree(&self, a: (usize, i64), b: (usize, i64), bytes: i64) -> bool {
        let mut done = 0;
        while done < bytes {
            let (Some(pa), Some(pb)) = (self.find(a.0, a.1 + done), self.find(b.0, b.1 + done))
            else {
                return false;
            };
            let (skip_a, skip_b) = (a.1 + done - pa.at, b.1 + done - pb.at);
            if pa.origin != pb.origin || pa.from + skip_a != pb.from + skip_b {
                return false;
            }
            done += (pa.bytes - skip_a).min(pb.bytes - skip_b);
        }
        true
    }

    /// The piece that holds a byte.
    fn find(&self, value: usize, at: i64) -> Option<Piece> {
        let pieces = &self.pieces[value];
        let index = pieces.partition_point(|p| p.at + p.bytes <= at);
        pieces.get(index).copied().filter(|p| p.at <= at)
    }
}
