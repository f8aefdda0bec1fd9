//! Matrix products and contractions.

use crate::difference::{check, frozen, noise};
use neap_ir::Op;

#[test]
fn matmul_of_every_rank() {
    let shapes: [(&[usize], &[usize]); 10] = [
        (&[3], &[3]),
        (&[3], &[3, 2]),
        (&[4, 3], &[3]),
        (&[4, 3], &[3, 2]),
        (&[2, 4, 3], &[3, 5]),
        (&[2, 4, 3], &[3]),
        (&[4, 3], &[2, 3, 5]),
        (&[2, 4, 3], &[2, 3, 5]),
        (&[2, 1, 4, 3], &[3, 3, 5]),
        (&[3], &[2, 3, 5]),
    ];
    for (a, b) in shapes {
        check(Op::MatMul, &[noise(a), noise(b)]);
        check(Op::MatMul, &[frozen(a), noise(b)]);
        check(Op::MatMul, &[noise(a), frozen(b)]);
    }
    check(Op::MatMul, &[noise(&[19, 33]), noise(&[33, 21])]);
}

#[test]
fn gemm_in_every_form() {
    for trans_a in [false, true] {
        for trans_b in [false, true] {
            let a: &[usize] = if trans_a { &[3, 4] } else { &[4, 3] };
            let b: &[usize] = if trans_b { &[5, 3] } else { &[3, 5] };
            let op = Op::Gemm {
                alpha: 0.5,
                beta: 2.0,
                trans_a,
                trans_b,
            };
            let cs: [&[usize]; 4] = [&[5], &[4, 1], &[4, 5], &[]];
            for c in cs {
                check(op.clone(), &[noise(a), noise(b), noise(c)]);
            }
            check(op, &[noise(a), noise(b)]);
        }
    }
}

#[test]
fn contractions() {
    let table: [(&str, &[&[usize]]); 16] = [
        ("ij,jk->ik", &[&[2, 3], &[3, 4]]),
        ("bhqd,bhkd->bhqk", &[&[2, 2, 3, 4], &[2, 2, 5, 4]]),
        ("ij,ij->ij", &[&[2, 3], &[2, 3]]),
        ("ij->ji", &[&[2, 3]]),
        ("i,j,k->kij", &[&[2], &[3], &[4]]),
        // Axes that are only summed.
        ("ij->i", &[&[2, 3]]),
        ("ij->", &[&[2, 3]]),
        ("ij,kl->k", &[&[2, 3], &[4, 2]]),
        // Axes of one element that stand for many.
        ("ij,jk->ik", &[&[2, 1], &[3, 4]]),
        ("ij,ij->ij", &[&[2, 1], &[1, 3]]),
        ("ij,ij->i", &[&[2, 1], &[2, 3]]),
        ("ij,ij->", &[&[1, 1], &[2, 3]]),
        // Axes without letters.
        ("...ij,...jk->...ik", &[&[2, 2, 3], &[2, 3, 2]]),
        ("...i,i...->...", &[&[2, 3, 4], &[4, 3]]),
        ("i...,ij", &[&[2, 3, 1], &[2, 4]]),
        ("Zb, bA", &[&[2, 3], &[3, 2]]),
    ];
    for (equation, shapes) in table {
        let operands: Vec<_> = shapes.iter().map(|s| noise(s)).collect();
        let equation = equation.to_string();
        check(Op::Einsum { equation }, &operands);
    }
    let equation = "ii,ij->ij".to_string();
    check(Op::Einsum { equation }, &[frozen(&[3, 3]), noise(&[3, 2])]);
}
