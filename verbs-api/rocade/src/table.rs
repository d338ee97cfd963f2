//! The style of tables.

use comfy_table::{Table, TableComponent, presets};

/// Returns an empty table with lines above, below, and under its header.
pub(crate) fn plain() -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::UTF8_HORIZONTAL_ONLY)
        .remove_style(TableComponent::HorizontalLines)
        .remove_style(TableComponent::MiddleIntersections)
        .remove_style(TableComponent::LeftBorderIntersections)
        .remove_style(TableComponent::RightBorderIntersections);
    table
}
