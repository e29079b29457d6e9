"""The panel lists: one module per dashboard. To add a panel: add it to its dashboard's grid."""
