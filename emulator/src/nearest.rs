//! The known name that a misspelt word was probably meant to be.

/// Returns the known name that `word` was probably meant to be.
#[must_use]
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let word = word.to_ascii_uppercase();
    let rated = known.iter().map(|&name| {
        let upper = name.to_ascii_uppercase();
        // For example, ROCADE_LOG_LEVEL means ROCADE_LOG, and ROCADE_RUNTIME means
        // ROCADE_RUNTIME_DIR.
        let is_part = word.len() > 2 && (word.starts_with(&upper) || upper.starts_with(&word));
        let distance = if is_part { 1 } else { distance(&word, &upper) };
        ((distance, word.len().abs_diff(upper.len())), name)
    });
    let ((distance, _), name) = rated.min_by_key(|(rating, _)| *rating)?;
    // Excludes the common prefix of variables.
    let len = word.trim_start_matches("ROCADE_").len();
    (distance <= 1 + len / 4).then_some(name)
}

/// Returns the edit distance: letters changed, added, left out, or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // `rows[i][j]` is the distance from the first i letters of `a` to the first j of `b`.
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (rows[i][j + 1] + 1).min(row[j] + 1);
            best = best.min(rows[i][j] + usize::from(x != y));
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}
