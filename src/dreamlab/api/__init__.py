"""What `import dreamlab` offers; everything here calls the rooms below."""
