// Four neighbouring outputs of an image, and the channels of two panels there.

struct Windows {
    rows: array<i32, 4>,
    cols: array<i32, 4>,
}

// Where each output's window begins; one past the last is computed like the last and not stored.
fn windows(first: u32, count: u32) -> Windows {
    let s = params.shape;
    var found: Windows;
    var row = first / s.out_w;
    var col = first - row * s.out_w;
    for (var p = 0u; p < 4u; p++) {
        found.rows[p] = i32(row * s.stride_h) - i32(s.pad_h);
        found.cols[p] = i32(col * s.stride_w) - i32(s.pad_w);
        let goes_on = p + 1u < count;
        let wraps = col + 1u == s.out_w;
        row = select(row, row + 1u, goes_on && wraps);
        col = select(col, select(col + 1u, 0u, wraps), goes_on);
    }
    return found;
}

// So many of both.
fn store(y_first: u32, positions: u32, count: u32, panels: u32) {
    for (var p = 0u; p < 4u; p++) {
        for (var j = 0u; j < 4u; j++) {
            if p < count {
                finish(y_first + p * 4u + j, sums[p][j]);
            }
        }
    }
    if panels > 1u {
        for (var p = 0u; p < 4u; p++) {
            for (var j = 0u; j < 4u; j++) {
                if p < count {
                    finish(y_first + (positions + p) * 4u + j, sums[p][4u + j]);
                }
            }
        }
    }
    if !MORE || is_bound() {
        return;
    }
    for (var q = 0u; q < panels; q++) {
        for (var i = 0u; i < count * 4u; i++) {
            curve(y_first + q * positions * 4u + i);
        }
    }
}

