"""What other libraries would do to redistribute an array, as steps that can be priced and run beside Partita's own."""
