"""The relaxations of factor graphs; imported when a graph is first solved."""
