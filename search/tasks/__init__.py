"""Problems that come with mutagym."""
